"""Helpers of the notebooks: an example store, and the style of the plots."""

from __future__ import annotations

import atexit
import shutil
import tarfile
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from rmq_store.report.plots import STYLE

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden"


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


plt.rcParams.update(STYLE)
