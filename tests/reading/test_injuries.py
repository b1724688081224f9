"""Many injuries to the files of real brokers: no message is made up, and none is lost without a word of the
read or an error of `verify`.

Each case hurts one to four places of a log or of queues. What a read gives is compared with the
golden store's own truth, and with the bytes that were changed; nothing of the reader says what was
hurt.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rmq_store import MessageStore, QueueId, StoreError
from rmq_store.errors import ListedAt
from rmq_store.format.queues import BATCH_QUEUE_ENTRY, QUEUE_ENTRY
from rmq_store.reading.query import DROPMALFORMED, FAILFAST, PERMISSIVE
from rmq_store.scan.parse_options import ScanOptions
from rmq_store.scan.tasks import DamageHandler
from rmq_store.verify import Severity
from tests.support.damage import DamagedStore, log_bytes, same_bytes
from tests.support.golden import GoldenStore, bodies_of, unpack, verified
from tests.support.running.campaigns import some

CLEAN_BASES = ("clean-5.2.0", "crc-5.5.0", "geometry-5.5.0", "lmq-5.3.3", "direct-5.5.0")
CRASHED_BASES = ("crash-5.3.3",)
BASES = (*CLEAN_BASES, *CRASHED_BASES)
CASES = 20_000
OF_EACH = -(-CASES // len(BASES))
FAST_CASES = 12  # of each store

Place = tuple[QueueId, int]
COLUMNS = ("topic", "queueId", "queueOffset", "commitLogOffset", "rawBody")


@dataclass(frozen=True)
class Listing:
    """A message of the truth: its record, its body as stored, and the file bytes of its entry."""

    log_offset: int
    size: int
    body: bytes
    entry: tuple[Path, int, int] | None  # None: its queue has no file


@dataclass
class Patient:
    """A copy of a golden store, and what is in it according to the broker's own classes."""

    golden: GoldenStore
    store: DamagedStore
    log: dict[int, bytes]
    messages: dict[Place, Listing] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, folder: Path) -> Patient:
        golden = unpack(name, folder)
        patient = cls(golden, DamagedStore.of(golden.path, folder / "hurt"), {})
        patient.log = log_bytes(patient.store.path)
        for queue, records in golden.by_queue.items():
            units = _units(patient.store, queue)
            for record in records:
                at = record["commitLogOffset"]
                offset, entry = units.get(at, (record["queueOffset"], None))
                entry = entry or _place_of(patient.store, queue, offset)
                body = bodies_of(record)[1]
                message = Listing(at, record["storeSize"], body, entry)
                patient.messages[queue, offset] = message
        return patient

    def intact(self, message: Listing, log: Mapping[int, bytes]) -> tuple[bool, bool]:
        """Whether the record, and the queue entry, of a message have the bytes they had."""
        record = same_bytes(dict(self.log), dict(log), message.log_offset, message.size)
        if message.entry is None:
            return record, True
        path, start, stop = message.entry
        now = path.read_bytes()[start:stop] if path.exists() else b""
        return record, now == self.store.whole[path][start:stop]


def _units(store: DamagedStore, queue: QueueId) -> dict[int, tuple[int, tuple[Path, int, int]]]:
    """By log offset: the queue offset of an entry, and its bytes; read by the book."""
    found = {}
    for kind, layout in (("consumequeue", QUEUE_ENTRY), ("batchconsumequeue", BATCH_QUEUE_ENTRY)):
        folder = store.path / kind / queue.topic / str(queue.queue_id)
        width = layout.itemsize
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            raw = store.whole[path]
            for at in range(0, len(raw) - width + 1, width):
                size = int.from_bytes(raw[at + 8 : at + 12], "big")
                if 0 < size < 2**31 - 1:
                    where = int.from_bytes(raw[at : at + 8], "big")
                    number = (int(path.name) + at) // width
                    if kind != "consumequeue":
                        number = int.from_bytes(raw[at + 28 : at + 36], "big")
                    found[where] = (number, (path, at, at + width))
    return found


def _place_of(store: DamagedStore, queue: QueueId, offset: int) -> tuple[Path, int, int] | None:
    """The bytes of a ConsumeQueue where the entry of a queue offset belongs."""
    folder = store.path / "consumequeue" / queue.topic / str(queue.queue_id)
    for path, raw in store.whole.items():
        at = offset * QUEUE_ENTRY.itemsize - int(path.name) if path.parent == folder else -1
        if 0 <= at < len(raw):
            return path, at, at + QUEUE_ENTRY.itemsize
    return None


# --- injuries --------------------------------------------------------------------------------------

_WIDTHS = (1, 4, 8, 20, 40, 200, 1000, 4096)


def injure(store: DamagedStore, seed: int) -> None:
    """Hurt one to four places of the log and the queues, about half of them near an end."""
    random_ = random.Random(seed)
    parts = ("commitlog", "consumequeue", "batchconsumequeue")
    files = {
        part: [path for path in store.whole if path.relative_to(store.path).parts[0] == part]
        for part in parts
    }
    for _ in range(random_.choice((1, 1, 2, 3, 4))):
        part = random_.choice([part for part in parts if files[part]])
        written = [path for path in files[part] if path.exists() and path.read_bytes().strip(b"\0")]
        if not written:
            continue
        path = random_.choice(written)
        if part == "commitlog" and random_.random() < 0.5:
            path = max(written)
        store.hit.append(_hurt(random_, path) + f" {path.relative_to(store.path)}")


def _hurt(random_: random.Random, path: Path) -> str:
    raw = bytearray(path.read_bytes())
    used = len(bytes(raw).rstrip(b"\0"))
    width = random_.choice(_WIDTHS)
    at = random_.randrange(used)
    if random_.random() < 0.5:
        at = max(0, used - random_.randrange(1, 3000))
    kind = random_.choice(("flip", "flip", "zero", "zero", "noise", "ones", "end", "cut", "delete"))
    match kind:
        case "flip":
            raw[at] ^= 1 << random_.randrange(8)
        case "zero":
            raw[at : at + width] = bytes(len(raw[at : at + width]))
        case "noise":
            raw[at : at + width] = random_.randbytes(len(raw[at : at + width]))
        case "ones":
            raw[at : at + width] = b"\xff" * len(raw[at : at + width])
        case "end":
            raw[at:] = bytes(len(raw) - at)
        case "cut":
            del raw[at:]
        case _:
            path.unlink()
            return kind
    path.write_bytes(raw)
    return f"{kind} at {at}"


# --- what a read gives -----------------------------------------------------------------------------


@dataclass
class Given:
    """What one read gave: rows by place, and the error that ended it."""

    rows: dict[Place, tuple[int, bytes]] = field(default_factory=dict)
    damages: int = 0
    reported: list[ListedAt | None] = field(default_factory=list)
    error: StoreError | None = None


def read(path: Path, mode: str) -> Given:
    given = Given()
    try:
        with MessageStore.open(path) as store:
            damage = DamageHandler(store, ScanOptions(paths=(str(path),), mode=mode))
            ranges = store.view.ranges_of(store.topics())
            for batch in store.read_slices(ranges, columns=COLUMNS, on_damage=damage):
                for row in batch.to_pylist():
                    place = QueueId(row["topic"], row["queueId"]), row["queueOffset"]
                    assert place not in given.rows, f"{place} twice"
                    given.rows[place] = row["commitLogOffset"], row["rawBody"]
            given.damages = sum(damage.counts.values())
            about = [
                row
                for batch in damage.rows((*COLUMNS, "corruptRecord"))
                for row in batch.to_pylist()
            ]
            assert len(about) == (given.damages if mode == PERMISSIVE else 0)
    except StoreError as error:
        given.error = error
    return given


def judge(patient: Patient) -> None:
    """Compare what the three modes give with the truth and with what was hurt."""
    log = log_bytes(patient.store.path)
    lenient, strict = read(patient.store.path, PERMISSIVE), read(patient.store.path, FAILFAST)
    dropping = read(patient.store.path, DROPMALFORMED)
    assert (dropping.rows, dropping.damages) == (lenient.rows, lenient.damages)
    if lenient.error is not None:
        assert strict.error is not None, "the store opens in one mode only"
        return
    _nothing_invented(patient, lenient, log)
    start = min(log, default=2**63)  # what is before it has expired, as far as any reader can know
    there = {place for place, one in patient.messages.items() if one.log_offset >= start}
    missing = there - lenient.rows.keys()
    _nothing_lost(patient, missing, log)
    assert (strict.error is None) == (lenient.damages == 0), strict.error
    if missing - _after_the_end(patient, lenient) and not lenient.damages:
        named = any(one.severity is Severity.ERROR for one in verified(patient.store.path).findings)
        assert named, f"missing without a word: {sorted(missing)[:5]}"


def _nothing_invented(patient: Patient, given: Given, log: Mapping[int, bytes]) -> None:
    for place, (log_offset, body) in given.rows.items():
        truth = patient.messages.get(place)
        if truth is None:
            assert not _is_intact_at(patient, log, log_offset), f"{place} never was"
            continue
        assert log_offset == truth.log_offset, f"{place} is another message"
        if patient.intact(truth, log)[0]:
            assert body == truth.body, f"{place} has another body"


def _is_intact_at(patient: Patient, log: Mapping[int, bytes], log_offset: int) -> bool:
    """Whether the log has there what it had: if not, a record may name a queue that never was."""
    sizes = [one.size for one in patient.messages.values() if one.log_offset == log_offset]
    size = sizes[0] if sizes else 1
    return same_bytes(dict(patient.log), dict(log), log_offset, size)


def _nothing_lost(patient: Patient, missing: Iterable[Place], log: Mapping[int, bytes]) -> None:
    for place in missing:
        record, entry = patient.intact(patient.messages[place], log)
        assert not (record and entry), f"{place} was not hurt"


def _after_the_end(patient: Patient, given: Given) -> set[Place]:
    """Messages after the last row, in the log of a store that crashed: its torn end, as far as any
    reader can know."""
    if not (patient.store.path / "abort").exists():
        return set()
    last = max((log_offset for log_offset, _ in given.rows.values()), default=-1)
    return {place for place, one in patient.messages.items() if one.log_offset > last}


def run_injuries(name: str, folder: Path, seeds: Iterable[int]) -> None:
    patient = Patient.of(name, folder)
    for seed in seeds:
        injure(patient.store, seed)
        try:
            judge(patient)
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}: {patient.store.hit}: {error}") from error
        patient.store.mend()


# --- damage in the part of the log that no queue lists ----------------------------------------------


def forget_the_end(patient: Patient, width: int) -> int:
    """Let queues lack the entries of the last `width` bytes of the log; gives the log offset.

    That is how a broker that dispatches late leaves them when its machine dies.
    """
    messages = patient.messages.values()
    begin = max(one.log_offset + one.size for one in messages) - width
    whole = patient.store.whole
    for path, start, _ in (one.entry for one in messages if one.log_offset >= begin if one.entry):
        behind = {path: start} | {p: 0 for p in path.parent.iterdir() if p.name > path.name}
        for file, at in behind.items():
            whole[file] = whole[file][:at] + bytes(len(whole[file]) - at)
            file.write_bytes(whole[file])
    return begin


def injure_the_end(patient: Patient, begin: int, place: int, width: int) -> None:
    """Change `width` bytes of the log at `place`, a number that chooses one after `begin`."""
    end = max(one.log_offset + one.size for one in patient.messages.values())
    at = begin + place % (end - begin)
    base = max(base for base in patient.log if base <= at)
    path = patient.store.path / "commitlog" / f"{base:020}"
    raw = bytearray(patient.store.whole[path])
    for position in range(at - base, min(at - base + width, len(raw))):
        raw[position] = raw[position] ^ 0x40 if width < _PAGE else 0
    path.write_bytes(raw)
    patient.store.hit.append(f"{width} bytes of the log at {at}")


_PAGE = 4096
_END = 300 << 10


def run_unlisted_injuries(name: str, folder: Path, places: Iterable[int]) -> None:
    patient = Patient.of(name, folder)
    begin = forget_the_end(patient, _END)
    for place in places:
        injure_the_end(patient, begin, place, _PAGE if place % 5 == 4 else 1)
        try:
            judge(patient)
        except Exception as error:
            raise AssertionError(f"{name}: {patient.store.hit}: {error}") from error
        patient.store.mend()


def test_a_damaged_record_that_no_queue_lists_hides_none_behind_it(tmp_path: Path) -> None:
    run_unlisted_injuries("crash-5.3.3", tmp_path, range(0, _END, _END // 15))


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["crash-5.3.3", "crash-5.5.0", "crash-4.9.7", "hot-5.5.0"])
def test_each_byte_of_the_part_of_the_log_that_no_queue_lists(name: str, tmp_path: Path) -> None:
    run_unlisted_injuries(name, tmp_path, some(name, range(0, _END, 601)))


@pytest.mark.parametrize("name", BASES)
def test_the_store_itself_is_given_whole_and_without_a_word(name: str, tmp_path: Path) -> None:
    patient = Patient.of(name, tmp_path)
    for mode in (FAILFAST, PERMISSIVE, DROPMALFORMED):
        given = read(patient.store.path, mode)
        assert given.error is None
        assert given.damages == 0
        assert {p: row[0] for p, row in given.rows.items()} == {
            place: one.log_offset for place, one in patient.messages.items()
        }


@pytest.mark.campaign
@pytest.mark.parametrize("name", BASES)
def test_no_injury_costs_a_message_without_a_word(name: str, tmp_path: Path) -> None:
    run_injuries(name, tmp_path, range(FAST_CASES))
    run_injuries(name, tmp_path / "more", some(name, range(FAST_CASES, FAST_CASES + OF_EACH), 40))
