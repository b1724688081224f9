"""Stores that somebody made to do harm: one to three lies each, as a seed has it.

The base is a small store of records that a real broker wrote. A lie is about names, sizes, JSON,
links, fields of records whose CRC is right, inner batches, queue entries, index headers.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rmq_store.admin.rebuild import rebuild
from tests.support.golden import GoldenStore

NUMBERS = (0, 1, -1, 2**15, 2**31 - 1, -(2**31), 10**7, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))
TEXTS = (
    b"../../can", b"/etc/can", b"..", b".", b"", b"a\0b", b"a\nb\tc", b"\xff\xfe", b"x" * 127,
    b"%RETRY%../x", b"SCHEDULE_TOPIC_XXXX", b"%LMQ%a", "caf\u00e9\u202e".encode(), b"[bold]",
)  # fmt: skip
PROPERTIES = (
    "INNER_NUM\1{n}\2INNER_BASE\0011\2", "INNER_BASE\1{n}\2INNER_NUM\0013\2",
    "REAL_TOPIC\1{t}\2REAL_QID\1{n}\2", "INNER_MULTI_DISPATCH\1{t},%LMQ%b\2",
    "INNER_MULTI_DISPATCH\1%LMQ%a,%LMQ%b\2INNER_MULTI_QUEUE_OFFSET\1{n},x\2", "DELAY\1{n}\2",
    "KEYS\1a b a \x7f\2UNIQ_KEY\1{t}\2", "\1\2\1\2", "\2\2\2", "A\1", "TAGS\1{t}\2TAGS\1b\2",
    "CLUSTER\1{t}\2", "TRAN_MSG\1true\2PGROUP\1{t}\2", "TIMER_DELAY_MS\1{n}\2", "__CRC32#\1{n}\2",
)  # fmt: skip
TEXT_OF_JSON = (
    "NaN", "[" * 5000, '{"a":' * 150, '"' + '\\"' * 500, "", "null", "[]", "7", '{"offsetTable":[]}',
    '{"offsetTable":{"orders@g":{"0":1e999}}}', '{"offsetTable":{"orders@g":{"x":-1}}}',
    '{"offsetTable":{"../../can@../g":{"0":99999999999999999999}}}',
    '{"topicConfigTable":{"../../can":{"readQueueNums":2147483647}}}',
    '{"topicConfigTable":{"\\ud800":{"readQueueNums":1}}}',
    '{"topicConfigTable":{"orders":{"attributes":{"queue.type":"BatchCQ"},"readQueueNums":4}}}',
    '{"topicConfigTable":[{}]}', '{"offsetTable":{1:9223372036854775807,2:-5}}', "\0\0\0",
)  # fmt: skip
_CONFIGS = ("topics.json", "consumerOffset.json", "delayOffset.json", "lmqConsumerOffset.json")
_HEAD = struct.Struct(">iiIiiqqiq8sq8siqi")
_INNER = 0x80  # of sysFlag: the body is a batch of messages


@dataclass
class Rec:
    """A record of the log, taken apart."""

    head: list[int]  # magic, queueId, flag, queueOffset, sysFlag, born, stored, reconsume, prepared
    hosts: tuple[bytes, bytes]
    body: bytes
    topic: bytes
    properties: bytes

    @classmethod
    def parse(cls, raw: bytes) -> Rec:
        values = _HEAD.unpack_from(raw)
        (_, magic, _, queue, flag, at, _, sys, born, host, stored, other, again, prepared, n) = (
            values
        )
        end = _HEAD.size + n
        topic = raw[end + 1 : end + 1 + raw[end]]
        behind = end + 1 + raw[end]
        (length,) = struct.unpack_from(">H", raw, behind)
        head = [magic, queue, flag, at, sys, born, stored, again, prepared]
        properties = raw[behind + 2 : behind + 2 + length]
        return cls(head, (host, other), raw[_HEAD.size : end], topic, properties)

    def encode(
        self, where: int, *, lie: Callable[[str, int], int] = lambda name, value: value
    ) -> bytes:
        """The record at a log offset, with the right CRC. `lie` may change lengths and the place."""
        magic, queue, flag, at, sys, born, stored, again, prepared = self.head
        topic = struct.pack(">B", lie("topic", len(self.topic)) & 0xFF) + self.topic
        tail = topic + struct.pack(">H", lie("properties", len(self.properties)) & 0xFFFF)
        tail += self.properties
        total = _HEAD.size + len(self.body) + len(tail)
        crc = zlib.crc32(self.body) & 0x7FFFFFFF
        numbers = (
            _fit(lie("total", total), 32), magic, crc, _fit(queue, 32), _fit(flag, 32), _fit(at, 64),
            _fit(lie("place", where), 64), _fit(sys, 32), _fit(born, 64), self.hosts[0],
            _fit(stored, 64), self.hosts[1], _fit(again, 32), _fit(prepared, 64),
            _fit(lie("body", len(self.body)), 32),
        )  # fmt: skip
        return _HEAD.pack(*numbers) + self.body + tail


def _fit(value: int, bits: int) -> int:
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


class Generator:
    """Makes hostile stores from the records of a golden one."""

    def __init__(self, golden: GoldenStore, folder: Path) -> None:
        log = b"".join(
            path.read_bytes() for path in sorted(Path(golden.path, "commitlog").iterdir())
        )
        by_topic: dict[str, list[bytes]] = {}
        for record in golden.truth:
            start = record["commitLogOffset"]
            raw = log[start : start + record["storeSize"]]
            if len(raw) < 3000 and not record["sysFlag"] & 0x30:  # hosts of IPv4
                by_topic.setdefault(record["topic"], []).append(raw)
        self.records = [Rec.parse(raw) for raws in by_topic.values() for raw in raws[:8]]
        self.base = folder / "base"
        source = folder / "source"
        shutil.copytree(Path(golden.path, "config"), source / "config")
        self._write_log(source, [])
        sizes = {"mappedFileSizeCommitLog": 1 << 15, "mappedFileSizeConsumeQueue": 400}
        rebuild(source, self.base, config={**sizes, "maxHashSlotNum": 11, "maxIndexNum": 64})

    def _write_log(self, store: Path, lies: list[Callable[[int, Rec], bytes | None]]) -> None:
        """The log of all records, in files of 32 KiB; each lie may change one record."""
        folder = store / "commitlog"
        folder.mkdir(parents=True, exist_ok=True)
        size, raw = 1 << 15, bytearray()
        queues: dict[tuple[bytes, int], int] = {}
        for record in self.records:
            key = record.topic, record.head[1]
            head = [*record.head]
            head[3] = queues[key] = queues.get(key, -1) + 1
            numbered = replace(record, head=head)
            data = numbered.encode(len(raw))
            if len(raw) % size + len(data) + 8 > size:
                left = size - len(raw) % size
                raw += struct.pack(">iI", left, 0xCBD43194).ljust(left, b"\0")
                data = numbered.encode(len(raw))
            for lie in lies:
                data = lie(len(raw), numbered) or data
            raw += data[: size - len(raw) % size]
        for base in range(0, len(raw), size):
            piece = bytes(raw[base : base + size]).ljust(size, b"\0")
            path = folder / f"{base:020d}"
            path.unlink(missing_ok=True)  # an earlier lie may have put a link or a FIFO there
            path.write_bytes(piece)

    def make(self, seed: str, store: Path) -> list[str]:
        """A hostile store in the folder `store`. Returns what the lies are about."""
        random_ = random.Random(seed)
        shutil.copytree(self.base, store)
        done = []
        for _ in range(random_.choice((1, 1, 2, 3))):
            lie = random_.choice(_LIES)
            try:
                done.append(f"{lie.__name__}: {lie(self, random_, store)}")
            except OSError as error:  # an earlier lie has put something else in its place
                done.append(f"{lie.__name__}: not possible any more: {error}")
        return done

    # --- lies -------------------------------------------------------------------------------------

    def records_lie(self, random_: random.Random, store: Path) -> str:
        """Fields of some records; the queues are those of the true ones, or gone."""
        what: list[str] = []
        hit = {random_.randrange(len(self.records)) for _ in range(random_.choice((1, 2, 10)))}
        count = iter(range(len(self.records) + 1))

        def lie(where: int, record: Rec) -> bytes | None:
            if next(count) not in hit:
                return None
            name = random_.choice(
                ("field", "topic", "properties", "body", "batch", "length", "bomb")
            )
            what.append(name)
            return _changed(random_, record, name, where)

        self._write_log(store, [lie])
        if random_.random() < 0.5:
            for part in ("consumequeue", "batchconsumequeue"):
                shutil.rmtree(store / part, ignore_errors=True)
            what.append("no queues")
        return " ".join(what)

    def names_lie(self, random_: random.Random, store: Path) -> str:
        path = random_.choice(sorted(store.rglob("*")))
        names = [*(text.decode("latin-1") for text in TEXTS[4:]), "9" * 20, "99999999999", "0" * 20]
        names += [f"{number:020d}" for number in NUMBERS if number >= 0] + [os.fsdecode(b"b\xff")]
        name = random_.choice(names).replace("\0", "").replace("/", "_") or "x"
        target = path.with_name(name)
        if not target.exists():
            path.rename(target)
        return f"{path.name} to {name!r}"

    def sizes_lie(self, random_: random.Random, store: Path) -> str:
        path = _a_file(random_, store)
        size = random_.choice((0, 1, 19, 39, 41, 399, 401, 32767, 1 << 16, 2**31 - 1, 2**31, 2**40))
        os.truncate(path, size)
        return f"{path.relative_to(store)} of {size}"

    def json_lies(self, random_: random.Random, store: Path) -> str:
        name, text = random_.choice(_CONFIGS), random_.choice(TEXT_OF_JSON)
        (store / "config").mkdir(exist_ok=True)
        (store / "config" / f"{name}.bak").unlink(missing_ok=True)
        (store / "config" / name).write_text(text)
        return f"{name} {text[:60]!r}"

    def links_lie(self, random_: random.Random, store: Path) -> str:
        path = random_.choice(sorted(one for one in store.rglob("*") if not one.is_symlink()))
        to = random_.choice(("SELF", "/dev/null", "/dev/zero", "../../can", "CAN", "FIFO", "OTHER"))
        place = path.relative_to(store)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        can = store.parent / "can"
        if to == "FIFO":
            os.mkfifo(path)
        else:
            found = {"SELF": path, "CAN": can / "file", "OTHER": store / "commitlog" / ("0" * 20)}
            path.symlink_to(found.get(to, Path(to)))
        return f"{place} to {to}"

    def numbers_lie(self, random_: random.Random, store: Path) -> str:
        """Numbers in queue entries, index headers, slots and items, the checkpoint, the log."""
        path = _a_file(random_, store)
        with path.open("rb") as file:  # another lie may have made it 20 GB
            raw = bytearray(file.read(1 << 20))
        for _ in range(random_.choice((1, 3, 20))):
            width = random_.choice((4, 8))
            used = max(len(bytes(raw).rstrip(b"\0")), 48)
            at = (
                random_.randrange(used) // 4 * 4
                if random_.random() < 0.7
                else random_.randrange(48)
            )
            number = random_.choice((*NUMBERS, random_.randrange(1 << 16)))
            raw[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "big")
        with path.open("r+b") as file:
            file.write(raw)
        return str(path.relative_to(store))


_LIES = (
    Generator.records_lie, Generator.records_lie, Generator.records_lie, Generator.names_lie,
    Generator.sizes_lie, Generator.json_lies, Generator.links_lie, Generator.numbers_lie,
    Generator.numbers_lie,
)  # fmt: skip


def _a_file(random_: random.Random, store: Path) -> Path:
    """A regular file below a part of the store, each part as likely as the others."""
    parts = sorted(part for part in store.iterdir() if not part.is_symlink())
    for _ in range(20):
        part = random_.choice(parts)
        inside = sorted(part.rglob("*")) if part.is_dir() else [part]
        files = [one for one in inside if one.is_file() and not one.is_symlink()]
        if files:
            return random_.choice(files)
    made = store / "other"
    made.touch()
    return made


def _changed(random_: random.Random, record: Rec, name: str, where: int) -> bytes:
    record = replace(record, head=[*record.head])
    number = random_.choice(NUMBERS)
    text = random_.choice(TEXTS)
    match name:
        case "field":
            record.head[random_.randrange(1, 9)] = number
        case "topic":
            record.topic = text
        case "properties":
            form = random_.choice(PROPERTIES)
            extra = form.format(n=number, t=text.decode("latin-1")).encode("latin-1")
            record.properties = random_.choice(
                (extra, record.properties + b"\2" + extra, extra * 50)
            )
        case "body":
            record.body = random_.choice((b"", text, b"\xff" * 100, record.body * 3))
            record.head[4] ^= random_.choice((0x1, 0x1 | 0x300, 0x1 | 0x200, 0x1 | 0x100, 0x4, 0xC))
        case "batch":
            _make_batch(random_, record, number)
        case "bomb":
            record.body = zlib.compress(bytes(32 << 20), 9)
            record.head[4] |= 0x1 | 0x300
        case _:
            kind = random_.choice(("total", "body", "topic", "properties", "place"))
            return record.encode(where, lie=lambda one, value: number if one == kind else value)
    return record.encode(where)


def _make_batch(random_: random.Random, record: Rec, number: int) -> None:
    """A body of members: each right, or with lengths that lie, or a batch again."""

    def member(body: bytes, properties: bytes = b"KEYS\1k\2") -> bytes:
        crc = zlib.crc32(body) & 0x7FFFFFFF
        inner = struct.pack(">iIii", 0xDAA320A7 - (1 << 32), crc, 0, len(body)) + body
        inner += struct.pack(">H", len(properties)) + properties
        return struct.pack(">i", len(inner) + 4) + inner

    body = b"".join(member(b"member %d" % one) for one in range(random_.choice((1, 3, 200))))
    match random_.choice(("right", "lengths", "nested", "short", "tiny")):
        case "lengths":
            changed = bytearray(body)
            at = random_.choice((0, 4, 12, 16, 24, len(body) // 2))
            changed[at : at + 4] = (number % (1 << 32)).to_bytes(4, "big")
            body = bytes(changed[: len(body)])
        case "nested":
            for _ in range(50):
                body = member(body)[: 1 << 14]
        case "short":
            body = body[: random_.randrange(len(body))]
        case "tiny":
            body = struct.pack(">i", 4) * 3000
    record.body = body
    record.head[4] |= _INNER
    claimed = random_.choice((3, 200, number, 10**7))
    record.properties += b"\2INNER_NUM\1%d\2INNER_BASE\1%d\2" % (claimed, record.head[3])
