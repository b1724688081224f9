"""Stores hurt as operators meet them: each of `INJURIES` changes a copy of clean-5.5.0."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

Injury = Callable[[Path], object]

# Files with which no broker starts: store, file, its new size, code of the finding, what helps.
REFUSED_FILES = [
    ("crc-5.5.0", "consumequeue/payments/1/" + "0" * 20, 1661, "queue-file-refused", "rebuild"),
    ("clean-5.5.0", "batchconsumequeue/inner/0/" + "0" * 20, 2000, "queue-file-refused", "rebuild"),
    ("compact-timer-5.5.0", "timerwheel", 1000, "file-refused", "move it away"),
    ("compact-timer-5.5.0", "timerlog/" + "0" * 20, 50_000, "file-refused", "truncate -s 102400"),
]


def resize(path: Path, size: int) -> None:
    """Cut a file, or make it, with zeros at its end."""
    path.touch()
    truncate(path, size)


INJURIES: dict[str, Injury] = {"baseline": lambda store: None}


def truncate(path: Path, size: int) -> None:
    os.truncate(path, size)


def spoil(path: Path) -> None:
    """Let a JSON file begin with what is none, and lose its second half."""
    raw = b'{"broken": [[[[[,'[:16] + path.read_bytes()[16:]
    path.write_bytes(raw[: max(20, len(raw) // 2)])


def files_in(store: Path, folder: str) -> list[Path]:
    return sorted((store / folder).iterdir())


def log(number: int) -> Callable[[Path], Path]:
    return lambda store: files_in(store, "commitlog")[number]


def queue(number: int) -> Callable[[Path], Path]:
    return lambda store: files_in(store, "consumequeue/orders/0")[number]


def index(number: int) -> Callable[[Path], Path]:
    return lambda store: files_in(store, "index")[number]


def cut(which: Callable[[Path], Path], size: int) -> Injury:
    return lambda store: truncate(which(store), size)


def of_zeros(which: Callable[[Path], Path]) -> Injury:
    """As a loss of power leaves a file whose size was on the disk, and whose pages were not."""
    return lambda store: write_zeros(which(store))


def write_zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def without(which: Callable[[Path], Path]) -> Injury:
    return lambda store: which(store).unlink()


def without_folder(name: str) -> Injury:
    return lambda store: shutil.rmtree(store / name, ignore_errors=True)


def batch(store: Path) -> Path:
    return files_in(store, "batchconsumequeue/inner/0")[-1]


def checkpoint(store: Path) -> Path:
    return store / "checkpoint"


def without_log(store: Path) -> None:
    for path in files_in(store, "commitlog"):
        path.unlink()


_OF_FILES: dict[str, Injury] = {
    "log last cut to 100k": cut(log(-1), 100_000),
    "log last empty": cut(log(-1), 0),
    "log middle cut to 100k": cut(log(1), 100_000),
    "log middle empty": cut(log(1), 0),
    "log first empty": cut(log(0), 0),
    "log first missing": without(log(0)),
    "log middle missing": without(log(1)),
    "log last missing": without(log(-1)),
    "log all missing": without_log,
    "log last longer": cut(log(-1), 300_000),
    "queue last cut": cut(queue(-1), 500),
    "queue last empty": cut(queue(-1), 0),
    "queue middle cut": cut(queue(0), 500),
    "queue middle missing": without(queue(1)),
    "queue last missing": without(queue(-1)),
    "queue last of zeros": of_zeros(queue(-1)),
    "consumequeue missing": without_folder("consumequeue"),
    "batch queue cut": cut(batch, 500),
    "batch queue missing": without_folder("batchconsumequeue"),
    "index last cut": cut(index(-1), 500),
    "index last empty": cut(index(-1), 0),
    "index middle empty": cut(index(1), 0),
    "index missing": without_folder("index"),
    "checkpoint missing": without(checkpoint),
    "checkpoint empty": cut(checkpoint, 0),
    "checkpoint cut to 20": cut(checkpoint, 20),
}


def unclean(injury: Injury) -> Injury:
    def hurt(store: Path) -> None:
        injury(store)
        (store / "abort").write_text("1")

    return hurt


INJURIES["abort"] = unclean(INJURIES["baseline"])
for name, injury in _OF_FILES.items():
    INJURIES[name] = injury
    INJURIES[f"{name}+abort"] = unclean(injury)


def written(path: str, content: bytes) -> Injury:
    return lambda store: (store / path).write_bytes(content)


INJURIES |= {
    "log junk file name foo": written("commitlog/foo", b"x" * 10),
    "log junk file name foo full size": written("commitlog/foo", bytes(262_144)),
    "queue junk file foo": written("consumequeue/orders/0/foo", b"x" * 10),
    "queue junk folder foo": lambda store: (store / "consumequeue/orders/foo").mkdir(),
    "index junk file foo": written("index/foo", bytes(8840)),
    "config missing": without_folder("config"),
    "timercheck bad": written("config/timercheck", b"\xff" * 10),
    "timerwheel cut": written("timerwheel", bytes(1000)),
}


def of_config(name: str, *, hurt: Injury | None, backup: str) -> Injury:
    """Change a JSON file, or take it away (None), and its .bak: good, bad or none."""

    def change(store: Path) -> None:
        path = store / f"config/{name}.json"
        if hurt is None:
            path.unlink()
        else:
            hurt(path)
        if backup == "bad":
            path.with_name(f"{name}.json.bak").write_text("{{{")
        elif backup == "none":
            path.with_name(f"{name}.json.bak").unlink(missing_ok=True)

    return change


for name in (
    *("topics", "consumerOffset", "subscriptionGroup"),
    *("delayOffset", "consumerFilter", "consumerOrderInfo"),
):
    INJURIES[f"{name} bad, bak good"] = of_config(name, hurt=spoil, backup="good")
    INJURIES[f"{name} bad, bak bad"] = of_config(name, hurt=spoil, backup="bad")
    INJURIES[f"{name} bad, no bak"] = of_config(name, hurt=spoil, backup="none")
    INJURIES[f"{name} missing, no bak"] = of_config(name, hurt=None, backup="none")
for name in ("topics", "consumerOffset"):
    for backup, word in (("good", "bak good"), ("none", "no bak")):
        empty = of_config(name, hurt=lambda path: truncate(path, 0), backup=backup)
        INJURIES[f"{name} empty file, {word}"] = empty


def declare_plain(store: Path) -> None:
    path = store / "config/topics.json"
    path.write_text(path.read_text().replace("BatchCQ", "SimpleCQ"))


INJURIES["inner declared plain"] = declare_plain
