"""The picture of docs/performance.md, drawn from the tables of that page: no figure is in two places.

    python -m benchmarks.picture

Each bar is a ratio of throughputs: above 1, rmqstore is faster than what it is compared with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot as plt
from matplotlib.patches import Patch

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "performance.md"
PICTURE = DOCS / "pictures" / "performance.svg"
_CLASSES, _SPARK = "the store classes", "the floor of a source in Spark"
_COLOURS = {_CLASSES: "#2a6f97", _SPARK: "#c8741d"}


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a table: what was measured, against what, and the ratio as the page has it."""

    what: str
    against: str
    ratio: str

    @property
    def length(self) -> float:
        """How many times as fast as the other side. The tables of Spark compare durations."""
        return float(self.ratio) if self.against == _CLASSES else 1 / float(self.ratio)

    @property
    def label(self) -> str:
        """The length as it stands beside the bar."""
        return f"{self.length:.2f}"


def bars_of(page: str) -> list[Bar]:
    """The rows of the page that compare rmqstore with something else, in its order."""
    return [*_rows(page, "| messages of", _CLASSES, -1), *_rows(page, "| | rmqstore", _SPARK, 4)]


def _rows(page: str, header: str, against: str, column: int) -> Iterator[Bar]:
    size = ""
    inside = False
    for line in page.splitlines():
        if line.startswith(header):
            inside, size = True, line.split("|")[1].strip().removeprefix("messages of ")
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("|---"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if re.fullmatch(r"\d+\.\d+", cells[column]):
                yield Bar(f"{cells[0]}, {size}" if size else cells[0], against, cells[column])


def draw(bars: list[Bar], target: Path) -> None:
    """Write the picture as SVG, with its words as text."""
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rmqstore", "font.size": 9}):
        figure, axes = plt.subplots(figsize=(8.5, 0.24 * len(bars) + 1.2), layout="constrained")
        places = range(len(bars))
        axes.barh(
            places, [bar.length for bar in bars], color=[_COLOURS[bar.against] for bar in bars]
        )
        axes.set_yticks(places, [bar.what for bar in bars])
        axes.invert_yaxis()
        axes.axvline(1, color="#444444", linewidth=1)
        for place, bar in zip(places, bars, strict=True):
            paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # over the line at 1
            axes.text(bar.length + 0.02, place, bar.label, va="center", bbox=paper)
        axes.set_xlabel("rmqstore, as a multiple of the other side (more is faster)")
        axes.spines[["top", "right"]].set_visible(False)
        meanings = [Patch(color=colour, label=f"beside {n}") for n, colour in _COLOURS.items()]
        figure.legend(handles=meanings, frameon=False, loc="outside lower center", ncols=2)
        figure.savefig(target, format="svg", metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    draw(bars_of(PAGE.read_text("utf-8")), PICTURE)
    print(PICTURE)
