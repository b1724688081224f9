"""The report of a recovery: findings and changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmq_store.consumequeue.queue_folders import (
    entries_by_queue,
    line_of_lost_end,
    rows_of_entry_counts,
)
from rmq_store.errors import json_text, printable, spoken
from rmq_store.files.durable_files import Change
from rmq_store.files.segment_chain import OpenFiles
from rmq_store.format.byte_layout import DEFAULT_MAX_HASH_SLOTS, DEFAULT_MAX_INDEX_ITEMS, Ints
from rmq_store.format.queues import DEFAULT_BATCH_QUEUE_FILE_SIZE, DEFAULT_QUEUE_FILE_SIZE, QueueId
from rmq_store.format.topics import SCHEDULE_TOPIC
from rmq_store.text.sizes import counted


@dataclass(slots=True)
class UnlistedRecords:
    """Records of one queue that it does not list, because earlier records have their queueOffsets.

    `queue_offset` and `log_offset` are those of the first. `listed`: a BatchConsumeQueue lists them too,
    and a consumer may get one of two alone. `replaced`: in a RocksDB database later records have their
    queueOffsets, or are the queue's last ones with smaller queueOffsets; or the queueOffsets are damaged.
    """

    count: int
    queue_offset: int
    log_offset: int
    listed: bool = False
    replaced: bool = False


def add_unlisted_records(
    left_out: dict[QueueId, UnlistedRecords],
    queue: QueueId,
    queue_offset: Ints,
    log_offset: Ints,
    *,
    listed: bool = False,
    replaced: bool = False,
) -> None:
    """Add records of one queue, at least one, to those `left_out`."""
    first = UnlistedRecords(0, int(queue_offset[0]), int(log_offset[0]), listed, replaced)
    left_out.setdefault(queue, first).count += len(queue_offset)


def sentence_of_default_delays(count: int, *, planned: bool = False, again: str) -> str:
    """A sentence about entries with the times of the default delay levels, and how to get others."""
    return (
        f"{counted(count, 'entry')} of {SCHEDULE_TOPIC} {'would get' if planned else 'got'} the times of the "
        f"default delay levels. If the broker has a messageDelayLevel, {again}"
    )


DEFAULT_SIZES = {
    "mappedFileSizeConsumeQueue": DEFAULT_QUEUE_FILE_SIZE,
    "mapperFileSizeBatchConsumeQueue": DEFAULT_BATCH_QUEUE_FILE_SIZE,
    "maxHashSlotNum": DEFAULT_MAX_HASH_SLOTS,
    "maxIndexNum": DEFAULT_MAX_INDEX_ITEMS,
}
"""Settings that give files of queues and of the index their size, with a broker's defaults."""

_AFTER_LEFT_OUT = {  # by `listed` and `replaced`
    (False, False): "A broker skips them too; source=commitlog reads them",
    (True, False): (
        "The batch queue lists both, as in a broker, and a consumer may get one alone; rmqstore "
        "salvage gives each a queue offset of its own"
    ),
    (False, True): "The database has one entry for each queue offset; source=commitlog reads them",
}
_BY_QUEUE = ("entries_after_log", "entries_in_damage", "entries_left", "earlier_lives")
GIVE_THE_FILE = "give its file: --broker-conf"


@dataclass
class RecoveryReport:
    """The findings and changes of a recovery. `print` shows it; `to_json` is for programs.

    `log_start` and `log_end`: the log afterwards. `scanned_from`: start of the scan. `damage`: log
    ranges that are not records and were not changed. `entries_cut` and `entries_rebuilt`: units of
    queues. `delayed_rebuilt`: those of them that have the time of a delayed message, and
    `default_delays`: by default delay levels, because no configuration was given. `default_sizes`: of new
    files, by setting, because neither a configuration nor a file shows others. `records_cut`: intact
    records behind the log's new end, which are cut or hidden with the damage before them. `old_records_cut`:
    those that are older than the records before them, and what follows these, as a log that was cut leaves
    them.
    `entries_after_log`: of each queue, entries that lead after the log's end, and to no intact record.
    `entries_in_damage`: those that lead into `damage`. `entries_left`: entries after the new end of a queue,
    or of the log, that a broker leaves in the last file of the queue. `lacking`: a sentence for each
    thing that a store left `untouched` lacks: messages at an end of a queue, files of a queue or of the log.
    `left_out`: records that no broker lists, because earlier records have their queue offsets.
    `earlier_lives`: messages of queues whose topic was deleted and created again, from before that; no queue
    lists them. `queues`: min and max offset of each.
    `untouched`: the store was closed cleanly and its log and queues end together, so nothing else was checked
    and nothing was changed. `applied`: false for a plan, which says what a recovery would do.
    """

    path: str
    method: str
    clean: bool
    applied: bool = True
    untouched: bool = False
    log_start: int = 0
    log_end: int = 0
    scanned_from: int = 0
    records: int = 0
    damage: list[tuple[int, int]] = field(default_factory=list)
    files: list[Change] = field(default_factory=list)
    entries_cut: int = 0
    entries_rebuilt: int = 0
    index_items_rebuilt: int = 0
    default_delays: int = 0
    default_sizes: dict[str, int] = field(default_factory=dict)
    records_cut: int = 0
    old_records_cut: int = 0
    entries_after_log: dict[QueueId, int] = field(default_factory=dict)
    entries_in_damage: dict[QueueId, int] = field(default_factory=dict)
    entries_left: dict[QueueId, int] = field(default_factory=dict)
    lacking: list[str] = field(default_factory=list)
    left_out: dict[QueueId, UnlistedRecords] = field(default_factory=dict)
    earlier_lives: dict[QueueId, int] = field(default_factory=dict)
    queues: dict[QueueId, tuple[int, int]] = field(default_factory=dict)
    seconds: float = 0.0
    delayed_rebuilt: int = field(default=0, repr=False)
    # Topics: those of units with a batch, and of inner batches in a RocksDB database.
    batch_topics: set[str] = field(default_factory=set, repr=False)
    inner_batches: set[str] = field(default_factory=set, repr=False)
    # Queues at whose end a broker lists an entry of zeros, which leads to no record.
    empty_entries: list[QueueId] = field(default_factory=list, repr=False)

    @property
    def bytes_cut(self) -> int:
        """Bytes cut from the end of the log, up to its last nonzero byte."""
        return sum(file.bytes for file in self.files if file.what == "cut log")

    def lines_of_records_cut(self) -> Iterator[str]:
        """Sentences about intact records behind the log's new end."""
        cut = "cut" if self.method == "strict" else "left out"  # a broker leaves them in the file
        done = "are cut too" if self.applied else f"would be {cut} too"
        if self.records_cut:
            yield (
                f"{self.records_cut} intact records after log offset {self.log_end} {done}, because the one "
                "there is damaged. rmqstore salvage copies them into a new store, before a recovery"
            )
        if self.old_records_cut:
            yield (
                f"{self.old_records_cut} intact records after log offset {self.log_end} {done}: they are "
                "older than those before, as a recovery that cut the log leaves them. rmqstore salvage "
                "copies them"
            )

    def line_of_lost_end(self) -> str:
        """A sentence about entries that lead after the log's end, and what becomes of them."""
        line = line_of_lost_end(self.entries_after_log, self.log_end)
        left = self.entries_left
        if all(count <= left.get(queue, 0) for queue, count in self.entries_after_log.items()):
            return line
        which = "Each such entry" + (" that is not left in a file" if left else "")
        cut = "was cut" if self.applied else "would be cut, so put the file back first"
        return f"{line}. {which} {cut}"

    def line_of_entries_left(self) -> str:
        """A sentence about the `entries_left`, and what removes them."""
        return (
            f"would be left in the files: {entries_by_queue(self.entries_left)} after the new end of the "
            "queue or of the log. The next start may list them; rmqstore recover --apply repairs these queues"
        )

    def line_of_default_delays(self) -> str:
        """A sentence about entries with the times of the default delay levels."""
        # A second recovery keeps what the first has written.
        again = "they have wrong times: rmqstore rebuild --broker-conf writes right ones, into a new store"
        return sentence_of_default_delays(
            self.default_delays,
            planned=not self.applied,
            again=again if self.applied else GIVE_THE_FILE,
        )

    def line_of_default_sizes(self) -> str:
        """A sentence about new files with the broker's default sizes."""
        sizes = ", ".join(f"{name}={value}" for name, value in self.default_sizes.items())
        again = "rmqstore rebuild --broker-conf makes such files" if self.applied else GIVE_THE_FILE
        have = "have" if self.applied else "would have"
        return (
            f"new files {have} the broker's default sizes, because no file shows others: {sizes}. A broker "
            "with others does not start on such queue files, and finds no key in such index files: if it has "
            f"others, {again}"
        )

    def lines_of_left_out(self) -> list[str]:
        """A sentence for each queue with records that were left out."""
        return [
            f"{'doubled' if left.listed else 'left out'}: {counted(left.count, 'record')} of queue "
            f"{printable(queue.topic)}/{queue.queue_id} with queue offsets that "
            f"{'later records have, or that are damaged' if left.replaced else 'earlier records have'}; the "
            f"first: queue offset {left.queue_offset}, log offset {left.log_offset}. "
            + spoken(_AFTER_LEFT_OUT[left.listed, left.replaced])
            for queue, left in self.left_out.items()
        ]

    def lines_of_earlier_lives(self) -> list[str]:
        """A sentence for each queue whose topic was created again."""
        return [
            f"not listed: {counted(count, 'message')} of an earlier {printable(queue.topic)}/"
            f"{queue.queue_id}: the topic was deleted and created again, as its queue offsets say"
            for queue, count in self.earlier_lives.items()
        ]

    def to_json(self) -> str:
        """`to_dict` as one JSON object."""
        return json_text(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values for JSON."""
        lists = ("files", "left_out", "queues", *_BY_QUEUE)
        names = [of.name for of in fields(self) if of.repr and of.name not in lists]
        return {
            **{name: getattr(self, name) for name in names},
            "bytes_cut": self.bytes_cut,
            "files": [
                {"path": file.path, "what": file.what, "bytes": file.bytes} for file in self.files
            ],
            "left_out": [
                {**queue._asdict(), **asdict(left)} for queue, left in self.left_out.items()
            ],
            **{name: rows_of_entry_counts(getattr(self, name)) for name in _BY_QUEUE},
            "queues": [
                {**queue._asdict(), "min_offset": least, "max_offset": most}
                for queue, (least, most) in self.queues.items()
            ],
        }

    def __str__(self) -> str:
        if self.lacking:
            lines = [f"{printable(self.path)} was closed cleanly; nothing was changed"]
            return "\n".join([*lines, *(f"  {printable(sentence)}" for sentence in self.lacking)])
        if self.untouched:
            return (
                f"{printable(self.path)} was closed cleanly, and its log and queues end together: "
                "nothing else was checked, nothing was changed; `rmqstore verify` checks the rest"
            )
        state = "was closed cleanly" if self.clean else "was not closed cleanly"
        done = f"recovered ({self.method}) in {self.seconds:.2f} s"
        planned = f"a recovery ({self.method}) would give"
        in_damage = entries_by_queue(self.entries_in_damage)
        lines = [
            f"{printable(self.path)} {state}; {done if self.applied else planned}",
            f"log {self.log_start} to {self.log_end}, scanned from {self.scanned_from}: "
            f"{counted(self.records, 'record')}, {counted(self.bytes_cut, 'byte')} cut",
            f"queues: {len(self.queues)}, entries cut {self.entries_cut}, "
            f"rebuilt {self.entries_rebuilt}; index items rebuilt {self.index_items_rebuilt}",
            *self.lines_of_records_cut(),
            *([self.line_of_lost_end()] if self.entries_after_log else []),
            *([self.line_of_entries_left()] if self.entries_left else []),
            *self.lines_of_left_out(),
            *self.lines_of_earlier_lives(),
            *([self.line_of_default_delays()] if self.default_delays else []),
            *([self.line_of_default_sizes()] if self.default_sizes else []),
            *(f"damage left unchanged: {start} to {stop}" for start, stop in self.damage),
            *([f"lost in it: the messages of {in_damage}"] if self.entries_in_damage else []),
            *(f"{file.what}: {printable(file.path)} ({file.bytes} bytes)" for file in self.files),
        ]
        return "\n  ".join(lines)


class _Written(NamedTuple):
    """What a file gets at byte `at`; a missing file is created with `size` bytes."""

    path: Path
    size: int
    at: int
    data: memoryview


class ChangeList(OpenFiles):
    """Takes changes in order and makes each at once; a plan (`planned`) makes none.

    `made`: the changes but for what is written, which may be gigabytes.
    """

    def __init__(self, *, planned: bool, read_back: bool = False) -> None:
        """`read_back`: a plan keeps what would be written, for `read`."""
        super().__init__()
        self.planned = planned
        self.made: list[Change] = []
        self._held: list[Change | _Written] | None = None
        self._kept: dict[Path, list[_Written]] | None = {} if planned and read_back else None
        self._gone: set[Path] = set()

    @property
    def net_changes(self) -> list[Change]:
        """The changes of each file, without those before its removal."""
        last = {
            change.path: number
            for number, change in enumerate(self.made)
            if change.what == "removed"
        }
        return [one for number, one in enumerate(self.made) if number >= last.get(one.path, 0)]

    def add(self, change: Change | _Written) -> None:
        """Make this change, or note it."""
        if self._held is not None:
            self._held.append(change)
        elif isinstance(change, Change):
            self.made.append(change)
            if not self.planned:
                change.make()
            elif self._kept is not None and change.what == "removed":
                self._kept.pop(Path(change.path), None)
                self._gone.add(Path(change.path))
        elif not self.planned:
            super().write(*change)
        elif self._kept is not None:
            self._kept.setdefault(change.path, []).append(change)

    def remove(self, path: str | Path, size: int) -> None:
        """Delete a file of `size` bytes."""
        self.add(Change(str(path), "removed", size))

    def write(self, path: Path, size: int, at: int, data: Any) -> None:
        """As OpenFiles.write."""
        self.add(_Written(path, size, at, memoryview(data).cast("B")))

    def hold(self) -> None:
        """Let the changes from here on wait until it is certain that they are right."""
        self._held = []

    def release(self, *, forget: bool = False) -> None:
        """Make the changes that wait, or forget them."""
        held, self._held = self._held or [], None
        for change in () if forget else held:
            self.add(change)

    def read(self, path: Path, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        """`count` units of a file at most, as they are after the changes."""
        written = () if self._kept is None else self._kept.get(path, ())
        if not written:
            return np.fromfile(path, dtype=dtype, count=count)
        raw = np.zeros(written[0].size, dtype=np.uint8)
        if path.exists() and path not in self._gone:
            stored = np.fromfile(path, dtype=np.uint8, count=len(raw))
            raw[: len(stored)] = stored
        for one in written:
            raw[one.at : one.at + len(one.data)] = one.data
        return raw[: count * dtype.itemsize].view(dtype)
