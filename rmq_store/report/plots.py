"""Plots of a store, drawn on axes of matplotlib. The report and the notebooks draw with these.

Nothing here uses pyplot. Names of topics and groups are foreign text: they go through `shown_name`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.rcsetup import cycler
from matplotlib.ticker import FuncFormatter, MaxNLocator

from rmq_store.errors import printable
from rmq_store.text.sizes import UNITS, size

# Colours that colour-blind readers can distinguish (Okabe and Ito).
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
OK, BAD, QUIET, OTHERS = COLOURS[2], COLOURS[5], "#DDDDDD", COLOURS[7]
_OUTSIDE = 0.9  # a label beside its bar needs about so much of the width of the longest bar

STYLE: dict[Any, Any] = {  # rcParams of every plot
    "figure.figsize": (9, 4),
    "figure.constrained_layout.use": True,
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "legend.frameon": False,
    "savefig.dpi": 110,
    "text.parse_math": False,  # a dollar sign in the name of a topic is no formula
}

Numbers = npt.NDArray[np.float64]


def shown_name(name: str, longest: int | None = None) -> str:
    """The name of a topic, queue or group for a plot, cut to `longest` characters.

    Names are foreign text: control characters are escaped, and matplotlib leaves a name that begins
    with an underscore out of a legend.
    """
    shown = printable(name)
    if longest is not None and len(shown) > longest:
        shown = shown[: longest - 1] + "…"
    return f" {shown}" if shown.startswith("_") else shown


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name; they repeat after eight."""
    return dict(zip(names, cycle(COLOURS), strict=False))


def label_bytes(axes: Axes, axis: str = "y") -> None:
    """Label an axis of bytes at round numbers of KiB, MiB, ..."""
    low, high = axes.get_ylim() if axis == "y" else axes.get_xlim()
    chosen = axes.yaxis if axis == "y" else axes.xaxis
    power = min(max(0, int(np.log2(max(high - low, 1) / 2) // 10)), len(UNITS) - 1)
    unit = 1024**power
    ticks = MaxNLocator(6).tick_values(low / unit, high / unit) * unit
    chosen.set_ticks([tick for tick in ticks if low <= tick <= high])
    chosen.set_major_formatter(FuncFormatter(lambda at, _: f"{at / unit:,g} {UNITS[power]}"))


def label_times(axes: Axes, most: int = 9) -> None:
    """Label the x axis with times, UTC, whether it spans seconds or months; at most `most` labels."""
    locator = AutoDateLocator(minticks=min(4, most - 1), maxticks=most)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.set_xlabel("stored at (UTC)")


def as_times(milliseconds: npt.ArrayLike) -> npt.NDArray[Any]:
    """Milliseconds since the epoch as times for matplotlib."""
    whole: npt.NDArray[np.float64] = np.asarray(milliseconds, dtype="float64").round()
    return whole.astype("datetime64[ms]")


def draw_bars(
    axes: Axes,
    names: Sequence[str],
    values: Sequence[float],
    labels: Sequence[str],
    colours: Sequence[str] = (*COLOURS[:4], OTHERS),
) -> None:
    """A horizontal bar for each name, the first on top, with a label beside it.

    The last one of `colours` is that of all further bars; by default the first four have colours of
    their own, as in `draw_rate`.
    """
    rows = np.arange(len(names))
    chosen = [colours[min(row, len(colours) - 1)] for row in range(len(names))]
    bars = axes.barh(rows, np.asarray(values, dtype="float64"), color=chosen or None)
    axes.set_yticks(rows, names)
    axes.bar_label(bars, labels, padding=4)
    axes.invert_yaxis()
    room = _OUTSIDE if max(map(len, labels), default=0) > 16 else _OUTSIDE / 2
    axes.set_xlim(0, max(max(values, default=0), 1) * (1 + room))


def draw_rate(axes: Axes, edges: npt.ArrayLike, per_second: Numbers, names: Sequence[str]) -> None:
    """What was stored per second over time, one row of `per_second` for each name, stacked. `edges`: ms
    since the epoch, one more than there are columns. The last name is in grey: all others."""
    padded = np.concatenate([per_second, per_second[:, -1:]], axis=1)
    colours = [*COLOURS[: len(names) - 1], OTHERS]
    axes.stackplot(as_times(edges), padded, labels=names, colors=colours, step="post")
    label_times(axes)
    axes.set_ylim(0, max(per_second.sum(axis=0).max(initial=0) * 1.05, 1e-9))


def draw_days(
    axes: Axes, days: Sequence[str], values: Numbers, names: Sequence[str], most: int = 8
) -> None:
    """A bar for each day, one row of `values` (bytes) for each name, stacked. The last one is grey.

    At most about `most` days have a label.
    """
    bottom, width = np.zeros(len(days)), 0.8 if len(days) > 4 else 0.4
    at = np.arange(len(days))
    for name, row, colour in zip(names, values, [*COLOURS[: len(names) - 1], OTHERS], strict=True):
        axes.bar(at, row, bottom=bottom, color=colour, label=name, width=width)
        bottom += row
    step = max(1, -(-len(days) // most))
    axes.set_xticks(at[::step], [days[place] for place in at[::step]])
    axes.set_xlim(-0.6, max(len(days), 4) - 0.4)
    axes.set_xlabel("day of store time (UTC)")
    label_bytes(axes)


def bytes_label(taken: float, of_all: float, count: int) -> str:
    """Bytes, their share of all bytes, and messages with their mean size."""
    return f"{size(taken)}, {taken / max(of_all, 1):.1%}, {count:,} × {size(taken / max(count, 1))}"
