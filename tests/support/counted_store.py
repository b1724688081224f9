"""What is in a store, counted with struct, json and rocksdict: no reader of the product takes part.

Written after docs/format*.md and the broker's classes. It knows whole stores of 5.5.0 without damage, and
asserts what it takes for granted.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.support.dledger import HEAD, entries_of
from tests.support.golden import GoldenStore
from tests.support.log_records import V2, records
from tests.support.rocksdb import read_database

Queue = tuple[str, int]
Place = tuple[int, int, int]  # log offset, size, tagsCode
FIXED = struct.Struct(">iIiiiqqiq4sii")  # up to the born host, of a record with IPv4 hosts
_CQ, _DB_VALUE = struct.Struct(">qiq"), struct.Struct(">qiqq")
_BATCH_CQ = struct.Struct(">qiqqqhii")


@dataclass(frozen=True)
class Counted:
    """A record of the log. Times in ms."""

    place: int
    size: int
    topic: str
    queue_id: int
    offset: int
    flags: int
    born: int
    stored: int
    host: bytes  # of the broker: address and port
    reconsumed: int
    prepared: int
    crc: int
    body: bytes
    properties: dict[str, str]

    @property
    def queue(self) -> Queue:
        return self.topic, self.queue_id

    @property
    def end(self) -> int:
        return self.place + self.size

    @property
    def msg_id(self) -> str:
        """offsetMsgId (MessageDecoder#createMessageId)."""
        return (self.host + struct.pack(">q", self.place)).hex().upper()

    @property
    def is_listed(self) -> bool:
        """Whether a queue lists it: none lists a prepared or rolled-back one."""
        return self.flags & 0xC in (0, 8)

    @property
    def messages(self) -> int:
        """How many an inner batch holds, else 1."""
        return int(self.properties["INNER_NUM"]) if self.flags & 0x80 else 1

    @property
    def keys(self) -> list[str]:
        """What the index has of it (IndexService#buildIndex of 5.5.0)."""
        if self.flags & 0xC == 0xC:
            return []
        found = [self.properties.get("UNIQ_KEY"), *self.properties.get("KEYS", "").split(" ")]
        keys = [f"{self.topic}#{word}" for word in found if word]
        tags = self.properties.get("TAGS")
        return [*keys, f"{self.topic}#T#{tags}"] if tags else keys


def decode(raw: bytes, place: int) -> Counted:
    """The record in these bytes, which are at this log offset."""
    size, magic, crc, queue_id, _, offset, physical, flags, born, _, _, _ = FIXED.unpack_from(raw)
    assert (size, physical, flags & 0x30) == (len(raw), place, 0)
    stored, host, reconsumed, prepared, length = struct.unpack_from(">q8siqi", raw, 56)
    body, at = raw[88 : 88 + length], 88 + length
    assert crc == zlib.crc32(body) & 0x7FFFFFFF
    form = ">h" if magic == V2 else ">b"
    (topic_length,) = struct.unpack_from(form, raw, at)
    at += struct.calcsize(form)
    topic, at = raw[at : at + topic_length].decode(), at + topic_length
    text = raw[at + 2 :].decode()
    assert struct.unpack_from(">h", raw, at)[0] == len(raw) - at - 2
    properties = dict(item.split("\x01", 1) for item in text.split("\x02") if item)
    return Counted(
        *(place, size, topic, queue_id, offset, flags, born, stored, host, reconsumed, prepared),
        *(crc, body, properties),
    )


def java_hash(text: str) -> int:
    """String#hashCode."""
    number = 0
    for (letter,) in struct.iter_unpack(">H", text.encode("utf-16-be")):
        number = (31 * number + letter) & 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number


def relaxed_json(text: str) -> Any:
    """JSON of fastjson, whose integer keys have no quotes. No text in it looks like such a key."""
    return json.loads(re.sub(r"([{,]\s*)(\d+)\s*:", r'\1"\2":', text))


class IndexFile:
    """An index file by its bytes; of 5.5.0, in which the last key ended at an item."""

    def __init__(self, path: Path, conf: dict[str, str]) -> None:
        self.path, size = path, path.stat().st_size
        # Both settings, or neither: then four items for a slot, as a broker makes them by default.
        self.slots = int(conf.get("maxHashSlotNum", (size - 40) // 84))
        self.most = int(conf.get("maxIndexNum", 4 * self.slots))
        assert size == 40 + 4 * self.slots + 20 * self.most
        with path.open("rb") as file:
            head = struct.unpack(">qqqqii", file.read(40))
            self.begin_ms, self.end_ms, self.begin, self.end, slots_used, count = head
            heads = struct.unpack(f">{self.slots}i", file.read(4 * self.slots))
            # Place 0 stays empty.
            self.items = list(struct.iter_unpack(">iqii", file.read(20 * count)))[1:]
        self.used_slots = sum(number > 0 for number in heads)
        assert self.used_slots == slots_used
        self.chains = [self._length(number) for number in heads if number]
        assert sum(self.chains) == len(self.items)

    def _length(self, number: int) -> int:
        """How many items a slot leads to."""
        length = 0
        while number:
            number, length = self.items[number - 1][3], length + 1
        return length


def settings_of(golden: GoldenStore) -> dict[str, str]:
    """What the broker.conf of a golden store says."""
    lines = Path(golden.conf).read_text("utf-8").split("\n")
    return dict(line.split("=", 1) for line in lines if line)


class CountedStore:
    """A golden store of some kind, counted."""

    def __init__(self, golden: GoldenStore, scratch: Path) -> None:
        """`scratch`: a folder for copies of databases."""
        self.golden, self.root, self._scratch = golden, Path(golden.path), scratch
        self.conf = settings_of(golden)

    # --- log ---

    @property
    def log_folder(self) -> Path:
        """Where the files of the log are."""
        entries = self.root / "dledger-n0" / "data"
        return entries if entries.is_dir() else self.root / "commitlog"

    @cached_property
    def records(self) -> list[Counted]:
        """Every record of the log, in its order. A DLedger entry has 48 bytes before its record."""
        if self.log_folder.name == "data":
            found = ((one.place + HEAD.size, one.body) for one in entries_of(self.log_folder))
        else:
            found = ((int(file.name) + at, raw) for file, at, raw in records(self.root))
        return [decode(raw, place) for place, raw in found]

    @cached_property
    def by_queue(self) -> dict[Queue, list[Counted]]:
        """The records that queues are to list, in the order of their queue offsets, which have no gap."""
        found: dict[Queue, list[Counted]] = {}
        for record in self.records:
            if record.is_listed:
                found.setdefault(record.queue, []).append(record)
        for of_queue in found.values():
            at = of_queue[0].offset
            for record in of_queue:
                assert record.offset == at
                at += record.messages
        return found

    @cached_property
    def by_id(self) -> dict[str, Counted]:
        """The records by their offsetMsgId."""
        return {one.msg_id: one for one in self.records}

    def of_topic(self, topic: str) -> list[Counted]:
        return [one for queue, of in self.by_queue.items() if queue[0] == topic for one in of]

    @property
    def newest_ms(self) -> int:
        """Store time of the last record."""
        return self.records[-1].stored

    def later_copy(self, held: Counted) -> Counted | None:
        """The record of a message that the broker held, under the topic that it is for."""
        for one in self.records:
            same = one.properties.get("UNIQ_KEY") == held.properties["UNIQ_KEY"]
            if same and one.place > held.place and one.topic == held.properties["REAL_TOPIC"]:
                return one if one.reconsumed == held.reconsumed else None
        return None

    # --- queues ---

    @cached_property
    def entries(self) -> dict[Queue, dict[int, Place]]:
        """What the files of the queues, or their database, list; each entry leads to its record."""
        has_database = (self.root / "consumequeue" / "CURRENT").exists()
        found = self._in_database() if has_database else self._in_files()
        by_place = {record.place: record for record in self.records}
        for queue, entries in found.items():
            for offset, (place, size, _) in entries.items():
                record = by_place[place]
                assert (record.queue, record.offset, record.size) == (queue, offset, size)
        return found

    def _in_files(self) -> dict[Queue, dict[int, Place]]:
        found: dict[Queue, dict[int, Place]] = {}
        for path in sorted((self.root / "consumequeue").glob("*/*/*")):
            entries = found.setdefault((path.parts[-3], int(path.parts[-2])), {})
            for number, entry in enumerate(_CQ.iter_unpack(path.read_bytes())):
                if entry[1] > 0:
                    entries[int(path.name) // _CQ.size + number] = entry
        for path in sorted((self.root / "batchconsumequeue").glob("*/*/*")):
            entries = found.setdefault((path.parts[-3], int(path.parts[-2])), {})
            for place, size, tags, _, offset, *_ in _BATCH_CQ.iter_unpack(path.read_bytes()):
                if size > 0:
                    entries[offset] = place, size, tags
        return found

    def _in_database(self) -> dict[Queue, dict[int, Place]]:
        found: dict[Queue, dict[int, Place]] = {}
        rows = self.database("consumequeue")["default"]
        for key, value in rows.items():
            (length,) = struct.unpack_from(">i", key)
            topic = key[5 : 5 + length].decode()
            queue_id, _, offset = struct.unpack(">iBq", key[6 + length :])
            found.setdefault((topic, queue_id), {})[offset] = _DB_VALUE.unpack(value)[:3]
        return found

    # --- index ---

    @cached_property
    def index(self) -> list[IndexFile]:
        """The index files, which list exactly the keys of the log, in its order."""
        files = [IndexFile(path, self.conf) for path in sorted((self.root / "index").iterdir())]
        wanted = [(abs(java_hash(key)), one.place) for one in self.records for key in one.keys]
        assert [item[:2] for file in files for item in file.items] == wanted
        return files

    # --- configuration ---

    def database(self, name: str) -> dict[str, dict[bytes, bytes]]:
        """A RocksDB database in the store: rows by family."""
        return read_database(self.root / name, self._scratch / name.replace("/", "-"))

    @cached_property
    def config(self) -> dict[str, tuple[Path, Any]]:
        """By the name of the JSON file: the file, or the database in its place, and what is in it."""
        folder = self.root / "config"
        found = {
            path.name: (path, relaxed_json(path.read_text("utf-8")))
            for path in folder.glob("*.json")
        }
        if (folder / "rdb").is_dir():
            return found | {name: (folder / "rdb", of) for name, of in self._version_2()}
        if (folder / "topics").is_dir():
            for name, path, content in self._version_1():
                beside = found.get(name)
                if beside and _counter(beside[1]) > _counter(content):
                    for table, entries in beside[1].items():
                        content[table] = content.get(table, {}) | entries
                found[name] = path, content
        return found

    def _version_1(self) -> Iterator[tuple[str, Path, dict[str, Any]]]:
        for name, folder, table in (
            ("topics.json", "topics", "topicConfigTable"),
            ("subscriptionGroup.json", "subscriptionGroups", "subscriptionGroupTable"),
            ("consumerOffset.json", "consumerOffsets", "offsetTable"),
        ):
            families = {
                family: {key.decode(): json.loads(value) for key, value in rows.items()}
                for family, rows in self.database(f"config/{folder}").items()
            }
            rows = families["default"]
            if table == "offsetTable":
                rows = {key: relaxed_offsets(value) for key, value in rows.items()}
            content = {table: rows}
            if version := families.get("kvDataVersion", {}).get("kvDataVersionKey"):
                content["dataVersion"] = version
            if "subscriptionGroup" in name:
                content["forbiddenTable"] = families.get("forbidden", {})
            yield name, self.root / "config" / folder, content

    def _version_2(self) -> Iterator[tuple[str, dict[str, Any]]]:
        tables: dict[int, dict[bytes, bytes]] = {1: {}, 2: {}, 3: {}, 4: {}}
        versions = {}
        for key, value in self.database("config/rdb")["default"].items():
            one, table, kind = struct.unpack_from(">BhB", key)
            assert one == 1
            if kind == 2:
                tables[table][key[4:]] = value
            elif key[4:] == b"data_version":
                state, at, counter = struct.unpack(">qqq", value)
                versions[table] = {"stateVersion": state, "timestamp": at, "counter": counter}
        for number, name, table_name in (
            (3, "topics.json", "topicConfigTable"),
            (4, "subscriptionGroup.json", "subscriptionGroupTable"),
        ):
            named = {key[2:].decode(): json.loads(of[1:]) for key, of in tables[number].items()}
            yield name, {table_name: named, "dataVersion": versions[number]}
        offsets: dict[str, Any] = {"offsetTable": {}, "pullOffsetTable": {}}
        for number, table_name in ((1, "offsetTable"), (2, "pullOffsetTable")):
            for key, value in tables[number].items():
                group, topic, queue_id = _names_of(key)
                queues = offsets[table_name].setdefault(f"{topic}@{group}", {})
                queues[str(queue_id)] = struct.unpack(">q", value)[0]
        yield (
            "consumerOffset.json",
            offsets | ({"dataVersion": versions[1]} if 1 in versions else {}),
        )


def relaxed_offsets(value: dict[str, Any]) -> dict[str, int]:
    """The offsets in a value of the database consumerOffsets."""
    assert list(value) == ["offsetTable"]
    found: dict[str, int] = value["offsetTable"]
    return found


def _names_of(key: bytes) -> tuple[str, str, int]:
    """Group, topic and queue in a key of version 2."""
    found, at = [], 0
    for _ in range(2):
        (length,) = struct.unpack_from(">h", key, at)
        found.append(key[at + 2 : at + 2 + length].decode())
        at += 3 + length
    return found[0], found[1], struct.unpack(">i", key[at:])[0]


def _counter(content: dict[str, Any]) -> int:
    return int(content.get("dataVersion", {}).get("counter", 0))
