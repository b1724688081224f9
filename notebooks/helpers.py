"""Helpers of the notebooks: an example store, units, and the style of the plots."""

from __future__ import annotations

import atexit
import shutil
import tarfile
import tempfile
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.ticker import FuncFormatter, MaxNLocator

from rmq_store.escaping import printable

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden"
# Colours that colour-blind readers can distinguish (Okabe and Ito).
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
OK, BAD, QUIET = COLOURS[2], COLOURS[5], "#DDDDDD"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def scratch() -> Path:
    """A new folder for this notebook, deleted when its kernel ends."""
    folder = Path(tempfile.mkdtemp(prefix="rmqstore-notebook-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def example_store(name: str = "clean-5.5.0") -> Path:
    """A fresh copy of a store that a real broker wrote (tests/golden lists them)."""
    folder = scratch()
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name / "store"


def named(name: str) -> str:
    """The name of a topic, queue or group for a plot.

    Names are foreign text: control characters are escaped, and matplotlib leaves a name that begins
    with an underscore out of a legend.
    """
    shown = printable(name)
    return f" {shown}" if shown.startswith("_") else shown


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name; they repeat after eight."""
    return dict(zip(names, cycle(COLOURS), strict=False))


def size(count: float) -> str:
    """A byte count with a unit."""
    step = 0
    while abs(count) >= 1024 and step < len(_UNITS) - 1:
        count, step = count / 1024, step + 1
    return (
        f"{count:.0f} {_UNITS[step]}" if count >= 100 or not step else f"{count:.3g} {_UNITS[step]}"
    )


def in_bytes(axes: Axes, axis: str = "y") -> None:
    """Label an axis of bytes at round numbers of KiB, MiB, ..."""
    low, high = axes.get_ylim() if axis == "y" else axes.get_xlim()
    chosen = axes.yaxis if axis == "y" else axes.xaxis
    power = max(0, int(np.log2(max(high - low, 1) / 2) // 10))
    unit = 1024**power
    ticks = MaxNLocator(6).tick_values(low / unit, high / unit) * unit
    chosen.set_ticks([tick for tick in ticks if low <= tick <= high])
    chosen.set_major_formatter(FuncFormatter(lambda at, _: f"{at / unit:,g} {_UNITS[power]}"))


def in_time(axes: Axes) -> None:
    """Label the x axis with times, UTC, whether it spans seconds or months."""
    locator = AutoDateLocator(minticks=4, maxticks=9)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.set_xlabel("stored at (UTC)")


def as_times(milliseconds: npt.ArrayLike) -> npt.NDArray[Any]:
    """Milliseconds since the epoch as times for matplotlib."""
    whole: npt.NDArray[np.float64] = np.asarray(milliseconds, dtype="float64").round()
    return whole.astype("datetime64[ms]")


plt.rcParams.update(
    {
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
)
