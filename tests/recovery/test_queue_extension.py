"""The extension of a queue (`consumequeue_ext`) after a recovery, by struct alone."""

from __future__ import annotations

import struct
from pathlib import Path

from rmq_store.recovery import recover
from tests.support.golden import unpack

UNIT = struct.Struct(">qiq")  # of a queue: log offset, size, tagsCode
ADDRESS, LARGEST_ADDRESS = -(2**63), -(2**31) - 1
EXTENSION_FILE = 1000  # mappedFileSizeConsumeQueueExt of ext-5.5.0


def stream(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def extensions(root: Path) -> dict[Path, bytes]:
    """Folder of a queue -> the bytes of its extension."""
    base = root / "consumequeue_ext"
    return {path.relative_to(base): stream(path) for path in sorted(base.glob("*/*"))}


def end_of_extension(queue: bytes, extension: bytes, log_end: int) -> int:
    """The byte after the unit of the last entry that leads before `log_end`; 0 without any."""
    end = 0
    for place, size, code in UNIT.iter_unpack(queue):
        if size and place < log_end and code <= LARGEST_ADDRESS:
            end = code - ADDRESS + struct.unpack_from(">h", extension, code - ADDRESS)[0]
    return end


def cut_log(root: Path, file: int, records: int) -> int:
    """Cut the log after some records of a file, as a crash does; the log's new end."""
    path, *later = sorted((root / "commitlog").iterdir())[file:]
    raw, at = bytearray(path.read_bytes()), 0
    for _ in range(records):
        at += struct.unpack_from(">i", raw, at)[0]
    raw[at:] = bytes(len(raw) - at)
    path.write_bytes(raw)
    for gone in later:
        gone.unlink()
    (root / "abort").touch()
    return int(path.name) + at


def test_an_extension_is_cut_with_its_queue(tmp_path: Path) -> None:
    store = unpack("ext-5.5.0", tmp_path)
    root = Path(store.path)
    before = extensions(root)
    queues = {path: stream(root / "consumequeue" / path) for path in before}
    log_end = cut_log(root, file=1, records=40)
    ends = {path: end_of_extension(queues[path], before[path], log_end) for path in before}
    assert 0 < sum(ends.values()) < sum(len(raw.rstrip(b"\0")) for raw in before.values())
    report = recover(root, store.conf)
    assert report.log_end == log_end
    kept = {path: raw for path, raw in extensions(root).items() if raw}
    assert kept == {
        path: before[path][:end].ljust(-(-end // EXTENSION_FILE) * EXTENSION_FILE, b"\0")
        for path, end in ends.items()
        if end
    }


def test_a_short_file_of_an_extension_gets_its_size_again(tmp_path: Path) -> None:
    """A broker with the extension does not start on a file of another size."""
    store = unpack("ext-5.5.0", tmp_path)
    root = Path(store.path)
    file = root / "consumequeue_ext/orders/1/00000000000000000000"
    file.write_bytes(file.read_bytes()[:980])  # behind its last unit
    before = extensions(root)
    (root / "abort").touch()
    recover(root, store.conf)
    assert file.stat().st_size == EXTENSION_FILE
    assert extensions(root) == before | {Path("orders/1"): before[Path("orders/1")] + bytes(20)}
