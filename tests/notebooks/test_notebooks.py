"""Every notebook runs from top to bottom against the store of a real broker, and draws its pictures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.checkout import CHECKOUT
from tests.support.golden import GoldenStore
from tests.support.running.campaigns import some

FOLDER = CHECKOUT / "notebooks"
# Notebook -> how many pictures it draws, and words that its output must have. What they say was worked
# out from the golden store's truth.jsonl: see test_the_words_are_those_of_the_golden_store.
NOTEBOOKS = {
    "first_look": (1, ("closed       in order", "key ORDER_1420 [('orders', 1, 256)]")),
    "disk_usage": (3, ("ORDER_1229", "6488")),
    "lag_and_retention": (2, ("g-slow", "fileReservedTime=72 h")),
    "incident": (1, ("left out: [(911493, 911898)]", "nothing wrong: True - 1560 records")),
    "replay": (1, ("matched 100", "100 replayed, 100 of them equal")),
}
SECONDS_A_CELL = 180
# Each notebook also runs on six other stores: crashed ones, expired ones, without groups or topics.
_ANY = ("clean-4.3.2", "clean-5.2.0", "crash-5.5.0", "expired-5.5.0", "proxy-5.5.0", "lmq-5.3.3")
_ORDERS = ("clean-4.3.2", "clean-5.2.0", "crash-5.5.0", "expired-5.5.0", "clean-5.4.0", "lmq-5.3.3")
_PAID = ("clean-4.3.2", "clean-5.1.1", "clean-5.2.0", "clean-5.3.3", "clean-5.4.0", "crc-5.5.0")
OTHERS = {
    "first_look": _ANY,
    "disk_usage": _ANY,
    "lag_and_retention": _ANY,
    "incident": _PAID,  # the story of a message of a transaction
    "replay": _ORDERS,  # replays shipped orders
}
PAIRS = [(name, store) for name, stores in OTHERS.items() for store in stores]


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook leaves what it wrote in the folder for temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def test_these_are_all_notebooks() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NOTEBOOKS)


@pytest.mark.parametrize("name", list(NOTEBOOKS))
def test_no_outputs_are_kept_in_git(name: str) -> None:
    """An output in git is a number that nobody has looked at since, and a change in every run."""
    for cell in read(name).cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None), cell.source


@pytest.mark.campaign
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_from_top_to_bottom(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    before = sorted(path.name for path in FOLDER.iterdir() if path.name != "__pycache__")
    notebook = read(name)
    where = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(notebook, timeout=SECONDS_A_CELL, resources=where).execute()  # raises

    outputs = [o for cell in notebook.cells for o in cell.get("outputs", ())]
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    # A kernel may send what one print wrote in several pieces.
    reported = "".join(
        o["text"] if "text" in o else o.get("data", {}).get("text/plain", "") + "\n"
        for o in outputs
    )
    expected_pictures, words = NOTEBOOKS[name]
    assert len(pictures) == expected_pictures
    for word in words:
        assert word in reported
    after = sorted(path.name for path in FOLDER.iterdir() if path.name != "__pycache__")
    assert after == before, "a notebook left files behind"


@pytest.mark.campaign
@pytest.mark.parametrize(("name", "store"), some("notebooks", PAIRS))
def test_every_notebook_runs_on_other_stores(
    name: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for someone who sets STORE to a store of their own."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    notebook = read(name)
    for cell in notebook.cells:
        cell.source = cell.source.replace("example_store()", f"example_store({store!r})")
    assert any(store in cell.source for cell in notebook.cells)
    where = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(notebook, timeout=SECONDS_A_CELL, resources=where).execute()  # raises


def test_the_words_are_those_of_the_golden_store(clean: GoldenStore) -> None:
    truth = clean.truth
    assert len(truth) == 1588
    (paid,) = (t for t in truth if t["topic"] == "payments" and "ORDER_1650" in (t["keys"] or ""))
    assert (paid["commitLogOffset"], paid["storeSize"]) == (911493, 911898 - 911493)
    largest = max(
        (t for t in truth if not t["topic"].startswith("RMQ_")), key=lambda t: t["storeSize"]
    )
    assert (largest["storeSize"], largest["keys"]) == (6488, "ORDER_1229")
    orders = [t for t in truth if t["topic"] == "orders"]
    last = max((t for t in orders if t["queueId"] == 1), key=lambda t: t["queueOffset"])
    assert max(len(q) for q in clean.by_queue.values()) == last["queueOffset"] + 1 == 257
    assert last["keys"].startswith("ORDER_1420 ")
    since, until = 1795253027000, 1795253030000  # around the middle of the orders
    shipped = [
        t
        for t in truth
        if t["topic"] == "orders"
        and t["tags"] == "shipped"
        and since <= t["storeTimestamp"] < until
    ]
    assert len(shipped) == 100
