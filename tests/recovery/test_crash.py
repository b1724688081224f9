"""Writers killed at random points, and power lost at any: what was acknowledged is there, once, in order."""

from __future__ import annotations

import os
import random
import select
import signal
import struct
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmq_store import Gap, MessageStore
from rmq_store.recovery import recover
from tests.support.running.campaigns import count, seed_of
from tests.support.stores import SMALL, contents, one_message

SEED = 20261123
MANY_KILLS = 1000  # of each kind of flush
KILLS_IN_ONE_STORE = 20
POWER_LOSSES = 1000
_ACK = struct.Struct(">qq")


def message(number: int) -> dict[str, Any]:
    """Message `number`; every fourth has a body of several sectors, which can be torn in its middle."""
    plain = one_message(number)
    return plain if number % 4 else {**plain, "body": plain["body"] + b"#" * 1700}


# --- a writer in a process of its own -----------------------------------------------------------------


def write_until_killed(root: Path, config: dict[str, Any], first: int, out: int, way: int) -> None:
    """Append message after message, saying the number and place of each once it is acknowledged."""
    store = MessageStore.append_to(root, config)
    if way == 1:
        store.follow_in_background()
    number = first
    while True:
        done = store.append(message(number))
        os.write(out, _ACK.pack(number, done.commit_log_offset))
        number += 1
        if way == 2 and number % 7 == 0:
            store.flush()


def killed_writer(
    root: Path, config: dict[str, Any], first: int, chance: random.Random
) -> dict[int, int]:
    """Fork a writer and kill it at some point; the messages it said it had appended, with their places.

    This process has everything loaded, so the child appends from its first millisecond on.
    """
    readable, writable = os.pipe()
    way = chance.randrange(3)
    child = os.fork()
    if not child:
        try:
            os.close(readable)
            write_until_killed(root, config, first, writable, way)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)
    os.close(writable)
    # Some are killed while they recover or before their first message, most among messages. How many
    # they have appended by then is asked of them, so that a busy machine makes no difference.
    raw = b""
    if chance.random() < 0.8:
        wanted = _ACK.size * chance.randrange(1, 40)
        while len(raw) < wanted and select.select([readable], [], [], 20)[0]:
            piece = os.read(readable, wanted - len(raw))
            if not piece:
                break  # it ended by itself: seen below
            raw += piece
    poller = select.epoll()  # nothing is registered: a wait to the fraction of a millisecond
    poller.poll(chance.random() ** 2 * 0.03)
    poller.close()
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"the writer ended by itself: {status}"
    while piece := os.read(readable, 1 << 16):
        raw += piece
    os.close(readable)
    whole = len(raw) - len(raw) % _ACK.size
    return dict(_ACK.iter_unpack(raw[:whole]))


def check(root: Path, acknowledged: dict[int, int], *, damaged: bool = False) -> int:
    """No message that was acknowledged is missing, none is there twice, none torn; offsets have no gaps.

    The number that the next message can have.
    """
    with MessageStore.open(root) as reader:
        found = contents(reader)
        if not damaged:
            assert all(e.gap in (None, Gap.FILLER, Gap.UNWRITTEN) for e in reader.scan())
    places: dict[int, int] = {}
    for queue, messages in found.items():
        assert [m[0] for m in messages] == list(range(len(messages))), queue
        for _, at, _, body in messages:
            number = int(body[:6])
            assert body == message(number)["body"]
            assert (message(number)["topic"], message(number)["queueId"]) == queue
            assert number not in places, f"message {number} is there twice"
            places[number] = at
    missing = {n: at for n, at in acknowledged.items() if places.get(n) != at}
    assert not missing, f"acknowledged, and not there: {missing}"
    return max([*places, -1]) + 1


def kill_rounds(
    folder: Path, config: dict[str, Any], rounds: int, seed: str
) -> Iterator[tuple[Path, dict[int, int]]]:
    """Killed writers, one after the other on the same stores; each store after it was recovered."""
    chance = random.Random(seed)
    for number in range(rounds):
        root = folder / f"s{number // KILLS_IN_ONE_STORE}"
        if number % KILLS_IN_ONE_STORE == 0:
            MessageStore.create(root, config).close()
            acknowledged: dict[int, int] = {}
            first = 0
        acknowledged |= killed_writer(root, config, first, chance)
        yield root, acknowledged
        recover(root, config)
        first = check(root, acknowledged)


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_killed_writer_loses_and_doubles_nothing(kind: str, tmp_path: Path) -> None:
    rounds, seed = count(MANY_KILLS), seed_of(f"kills {kind}", f"{SEED} {kind}")
    print(f"seed {seed!r}")
    config = {**SMALL, "flushDiskType": kind}
    done, total = 0, 0
    for _, acknowledged in kill_rounds(tmp_path, config, rounds, seed):
        done += 1
        total += len(acknowledged)
    print(f"{kind}: {done} kills")
    assert done == rounds
    assert total > rounds * 5


# --- power ----------------------------------------------------------------------------------------


class Disk:
    """What a power loss leaves: everything up to a file's last flush, and of the rest what chance has.

    Writes, sizes and flushes are written down as they happen; `image` is a store as it could be
    found if the power went after the last of them.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now: dict[Path, bytearray] = {}
        self.safe: dict[Path, bytes] = {}

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        pwrite, fsync, ftruncate = os.pwrite, os.fsync, os.ftruncate
        flush = np.memmap.flush

        def on_write(fd: int, data: Any, at: int) -> int:
            done = pwrite(fd, data, at)
            file = self._file(fd)
            file[at : at + done] = bytes(data)[:done]
            return done

        def on_size(fd: int, size: int) -> None:
            ftruncate(fd, size)
            file = self._file(fd)
            file[:] = file[:size].ljust(size, b"\0")

        def on_sync(fd: int) -> None:
            fsync(fd)
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            if path.is_file():
                self.safe[path] = bytes(self._file(fd))

        def on_flush(mapped: Any) -> None:
            flush(mapped)
            path = Path(mapped.filename)
            self.now[path] = bytearray(mapped.tobytes())
            self.safe[path] = mapped.tobytes()

        patch.setattr(os, "pwrite", on_write)
        patch.setattr(os, "ftruncate", on_size)
        patch.setattr(os, "fsync", on_sync)
        patch.setattr(np.memmap, "flush", on_flush)

    def _file(self, fd: int) -> bytearray:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        return self.now.setdefault(path, bytearray(path.read_bytes()))

    def note_index(self) -> None:
        """Index files are written through memory, which nobody sees."""
        for path in (self.root / "index").iterdir():
            self.now[path] = bytearray(path.read_bytes())

    def image(self, target: Path, chance: random.Random) -> None:
        """Write a store as it could be found to `target`."""
        self.note_index()
        for path, now in self.now.items():
            if path.name in ("lock", "abort"):
                continue
            safe = self.safe.get(path)
            if safe is None and chance.random() < 0.3:
                continue  # not even its name had reached the disk
            place = target / path.relative_to(self.root)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(self._mixed(safe or bytes(len(now)), bytes(now), chance))
        for folder in ("commitlog", "consumequeue", "index", "config"):
            (target / folder).mkdir(parents=True, exist_ok=True)
        (target / "abort").touch()

    @staticmethod
    def _mixed(safe: bytes, now: bytes, chance: random.Random) -> bytes:
        """Each page as it was flushed or as it was last written."""
        page = chance.choice((512, 4096))
        kept = chance.choice((0.0, 0.3, 0.5, 0.9, 1.0))
        safe = safe.ljust(len(now), b"\0")
        return b"".join(
            (now if chance.random() < kept else safe)[at : at + page]
            for at in range(0, len(now), page)
        )


@pytest.mark.parametrize(
    "points", [8, pytest.param(POWER_LOSSES, marks=pytest.mark.campaign)], ids=["few", "many"]
)
def test_sync_flush_keeps_what_it_acknowledged_when_the_power_goes(
    points: int, tmp_path: Path
) -> None:
    seed: int | str = SEED
    if points == POWER_LOSSES:
        points, seed = count(points), seed_of("power", str(SEED))
    print(f"seed {seed!r}")
    chance = random.Random(seed)
    # The background flush is asked for by the test, not by a clock.
    calm = {"flushIntervalCommitLog": 10**8, "flushIntervalConsumeQueue": 10**8}
    config = {**SMALL, **calm, "flushDiskType": "SYNC_FLUSH"}
    lost = 0
    for run in range(-(-points // 20)):
        lost += power_losses(tmp_path / f"run{run}", config, min(20, points - lost), chance)
    print(f"{lost} power losses")
    assert lost == points


def power_losses(folder: Path, config: dict[str, Any], points: int, chance: random.Random) -> int:
    """One writer, and what its store would be if the power went at some of its messages."""
    root = folder / "s"
    disk = Disk(root)
    at_messages = sorted(chance.sample(range(1, 300), points))
    acknowledged: dict[int, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        disk.watch(patch)
        store = MessageStore.create(root, config)
        images = []
        for number in range(at_messages[-1] + 1):
            if number in at_messages:
                # This message is written and not flushed: that is when the power goes.
                with pytest.MonkeyPatch.context() as inner:
                    inner.setattr(store, "_wait_for_disk", lambda *_: None)
                    done = store.append(message(number))
                    if chance.random() < 0.5:
                        store.dispatch()
                target = folder / f"lost{number}"
                disk.image(target, chance)
                images.append((target, dict(acknowledged)))
                store._log_files.sync()
            else:
                done = store.append(message(number))
            acknowledged[number] = done.commit_log_offset
            if chance.random() < 0.03:
                store.flush()
        store.close()
    for target, promised in images:
        recover(target, config)
        check(target, promised)
    return len(images)
