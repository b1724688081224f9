"""Files of a store that are cut, removed or replaced while they are read: rows or our error.

A process that touches a page of a mapped file that is gone dies with SIGBUS.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_store import MessageStore
from tests.hostile.support.cut_reader import WAYS, files_of
from tests.support.checkout import CHECKOUT
from tests.support.running.campaigns import count, seed_of

RUNS = 200
LOG_FILE = 4 << 20
MESSAGES, BODY = 24_000, 700
SPARK_ONE_IN = 20
ENDED = re.compile(r"begins\n(rows|RMQSTORE_[A-Z_]+)\n")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of five log files, with queues and index."""
    path = tmp_path_factory.mktemp("cut") / "store"
    numbers = range(MESSAGES)
    batch = pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(["orders"] * MESSAGES),
            "queueId": pa.array([number % 4 for number in numbers], pa.int32()),
            "keys": pa.array([f"k{number}" for number in numbers]),
            "body": pa.array([b"%06d" % number + b"x" * BODY for number in numbers]),
        }
    )
    with MessageStore.create(path, {"mappedFileSizeCommitLog": LOG_FILE}) as writer:
        for start in range(0, MESSAGES, 4000):
            writer.append_batch(batch.slice(start, 4000))
    return path


def reader(way: str, store: Path, folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.hostile.support.cut_reader"]
    return subprocess.Popen(
        [*command, way, str(store), str(folder), *more],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ending(process: subprocess.Popen[str], begun: str = "") -> str:
    """What the reader ended with. Fails if a signal or an error that is not ours ended it."""
    out, err = process.communicate(timeout=300)
    found = ENDED.search(begun + out)
    assert process.returncode == 0, f"died of {process.returncode}: {begun}{out}{err[-4000:]}"
    assert found is not None, begun + out + err[-4000:]
    return found[1]


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("way", "windows"),
    [
        ("cat", 3), ("cat", 9), ("tail", 5), ("verify", 3), ("verify", 10), ("find", 2), ("info", 2),
        ("share", 4), ("share", 9), ("log", 2), ("log", 4), ("export", 6),
    ],
)  # fmt: skip
def test_files_cut_between_a_window_and_its_use_kill_nobody(
    tmp_path: Path, whole: Path, way: str, windows: int
) -> None:
    store = Path(shutil.copytree(whole, tmp_path / "store"))
    said = ending(reader(way, store, tmp_path, str(windows)))
    assert all(path.stat().st_size == 0 for path in files_of(store)), "nothing was cut"
    assert said == "rows" or said.startswith("RMQSTORE_")


def test_a_read_of_a_log_that_was_cut_is_data_loss(tmp_path: Path, whole: Path) -> None:
    store = Path(shutil.copytree(whole, tmp_path / "store"))
    assert ending(reader("share", store, tmp_path, "9")) == "RMQSTORE_DATA_LOSS"


# --- at random moments -----------------------------------------------------------------------------


def cut(path: Path, dice: random.Random) -> None:
    os.truncate(path, dice.choice((0, 1, 4096, dice.randrange(path.stat().st_size + 1))))


def remove(path: Path, dice: random.Random) -> None:
    path.unlink()


def replace(path: Path, dice: random.Random) -> None:
    """Another file of the same size, or a shorter one, takes its place."""
    other = path.with_name("other")
    size = path.stat().st_size
    other.write_bytes(bytes(dice.choice((size, dice.randrange(size + 1)))))
    other.rename(path)


def rewrite(path: Path, dice: random.Random) -> None:
    """The same bytes once more, in place: a copy that begins with a cut."""
    raw = path.read_bytes()
    with open(path, "wb") as file:
        for start in range(0, len(raw), 1 << 20):
            file.write(raw[start : start + (1 << 20)])


CHANGES: tuple[Callable[[Path, random.Random], None], ...] = (cut, cut, remove, replace, rewrite)


def one_run(whole: Path, folder: Path, dice: random.Random, number: int) -> str:
    store = Path(shutil.copytree(whole, folder / "store"))
    ways = sorted(set(WAYS) - {"spark"})
    way = "spark" if number % SPARK_ONE_IN == 0 else dice.choice(ways)
    process = reader(way, store, folder)
    try:
        assert process.stdout is not None
        begun = process.stdout.readline()
        time.sleep(dice.uniform(0, 8 if way == "spark" else 0.4))
        for path in dice.sample(files_of(store), dice.randrange(1, 6)):
            dice.choice(CHANGES)(path, dice)
            time.sleep(dice.uniform(0, 0.02))
        (folder / "stop").touch()
        return f"{way}: {ending(process, begun)}"
    finally:
        process.kill()
        shutil.rmtree(folder / "store")


@pytest.mark.campaign
def test_files_that_change_at_random_moments_kill_nobody(tmp_path: Path, whole: Path) -> None:
    seed = seed_of("cut files", "20261122")
    print("seed:", seed)
    endings: dict[str, int] = {}
    for number in range(count(RUNS, 8)):  # fewer may lose no data
        folder = tmp_path / str(number)
        folder.mkdir()
        said = one_run(whole, folder, random.Random(f"{seed} {number}"), number)
        endings[said] = endings.get(said, 0) + 1
    print(sorted(endings.items()))
    assert any(said.endswith("RMQSTORE_DATA_LOSS") for said in endings)
