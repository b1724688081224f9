"""Copy the intact messages of a damaged log into a new store, and report every skipped byte.

Needs no queue and no index. Records keep store time, hosts, producer ids and properties, but not
their positions. There are no gaps in the new queues, so queue offsets change. What names them gets the new
ones: offsets of groups, and the state of the broker that is still open (`OpenState`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from rmq_store.admin.carried_files import BATCH, CarriedConfig, write_delay_offsets
from rmq_store.admin.moved_records import MovedRecords, moved_offsets
from rmq_store.arrow.column_values import hosts, stored_bodies, stored_properties, stored_topics
from rmq_store.commitlog.headers import Headers, record_crc_rows
from rmq_store.commitlog.log import misnamed_files
from rmq_store.commitlog.walk import Extent, SoundRun, page_rest, walk
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.dledger import unread_dledger
from rmq_store.config.locate import require_apart
from rmq_store.config.topics_json import batch_topics, declared_topics
from rmq_store.consumequeue.queue_folders import EntriesAfterCopy, rows_of_counts
from rmq_store.format.byte_layout import Ints, in_portions
from rmq_store.format.compression import SysFlag, enters_queue
from rmq_store.format.queues import QueueId
from rmq_store.format.record import Gap
from rmq_store.format.topics import LMQ_PREFIX, SCHEDULE_TOPIC, is_group_of_broker
from rmq_store.markers import was_closed
from rmq_store.snapshot.opening import refuse_unknown_size
from rmq_store.store import MessageStore
from rmq_store.system_topics.open_state import OpenState
from rmq_store.writing.store_writer import AcceptedRows, StoreWriter, append_accepted

_BATCH_BYTES = 16 << 20
_SKIPPED_KEPT = 10_000  # ranges listed one by one; further ones are counted
# Gaps that are not a loss: the filler at a file's end, and bytes never written or cut off on
# purpose.
_NO_LOSS = frozenset((Gap.FILLER, Gap.UNWRITTEN, Gap.STALE))

Progress = Callable[[int], None]  # receives the number of log bytes read


@dataclass(frozen=True, slots=True)
class Skipped:
    """A log range [start, stop) without an intact record."""

    start: int
    stop: int
    kind: str
    reason: str | None


@dataclass(slots=True)
class SalvageReport:
    """The result of a salvage. Record bytes, skipped bytes and no-loss bytes add up to the log."""

    source: str
    target: str
    log_start: int = 0
    log_stop: int = 0
    messages: int = 0
    record_bytes: int = 0
    skipped_bytes: int = 0
    no_loss_bytes: int = 0  # filler, preallocated zeros, stale tails, heads of entries
    topics: Counter[str] = field(default_factory=Counter)
    skipped: list[Skipped] = field(default_factory=list)
    skipped_ranges: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # reason -> intact records not written
    misnamed: list[str] = field(default_factory=list)  # files of the log with a wrong name
    entries_after_log: dict[QueueId, int] = field(default_factory=dict)  # see RecoveryReport
    log_end: int = 0  # after the last intact record
    unread: str | None = None  # a log of another kind that the store goes on in
    default_delays: int = 0  # delayed messages that are due by the default levels: none were given
    with_record_crcs: bool = False  # whether the last copied record had one
    raw: bool = False  # every record was copied, with the offsets that it names
    ended: Counter[str] = field(default_factory=Counter)  # of the broker, not copied, by reason
    ended_bytes: int = 0
    waiting: int = 0  # delayed and timer messages that are still to be delivered
    open_transactions: int = 0
    without_copy: int = 0  # delayed messages that were delivered, and whose copy is lost
    group_offsets: int = 0  # offsets of groups, of a queue each, that were carried over
    # Messages that a group popped and did not acknowledge, and those that it gets again for their sake.
    not_acknowledged: int = 0
    given_again: int = 0
    config_unread: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values for JSON."""
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            "topics": dict(sorted(self.topics.items())),
            "ended": dict(sorted(self.ended.items())),
            "skipped": [asdict(part) for part in self.skipped],
            "entries_after_log": rows_of_counts(self.entries_after_log),
        }


def salvage(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    config: Any = None,
    release: str | None = None,
    raw: bool = False,
    progress: Progress | None = None,
) -> SalvageReport:
    """Write every intact record of the log in `source` to a new store in `target`.

    Records of the broker that name offsets get the new ones, and those whose state has ended are left
    out; with `raw` all are copied as they are, as evidence: no broker should start on that store. The
    source is never changed. `config` and `release` are for the target; file sizes default to those of
    the source. Raises TargetExistsError if the target has content, and the errors of opening and
    writing. An unfinished target keeps its file `abort`. `progress` is given the bytes of two passes
    over the log, with `raw` of one.
    """
    known = StoreConfig.of(config)
    with MessageStore.open(source, config=known, queues=False) as store:
        require_apart([store.path, *store.log.chain.folders], target)
        refuse_unknown_size(store.log, known)
        report = SalvageReport(
            str(store.path), os.fspath(target), store.log.start, store.log.chain.stop, raw=raw
        )
        queues = EntriesAfterCopy(store.path, store.config, store.log)
        unread = unread_dledger(store.path, known, store.log.chain.segments)
        report.unread = None if unread is None else str(unread)
        report.with_record_crcs = _has_record_crcs(store)
        crcs = StoreConfig(enabledAppendPropCRC=report.with_record_crcs)
        settings = known.with_defaults_of(store.geometry()).with_defaults_of(crcs)
        settings = replace(settings, maxMessageSize=None)  # the limit of messages that come later
        state = None if raw else OpenState.of(store, progress)
        with MessageStore.create(target, settings, release=release) as writer:
            salvaging = _Salvaging(store, writer, report, state)
            for piece in walk(store.log):
                salvaging.take(piece)
                if progress is not None:
                    progress(piece.stop - piece.start)
            salvaging.finish()
        report.entries_after_log = queues.behind(report.log_end)
        report.default_delays = report.topics[SCHEDULE_TOPIC] if config is None else 0
        report.misnamed = [f"{file}. {file.advice}" for file in misnamed_files(store.log)]
    return report


class _Salvaging:
    """The writing of a new store; without `state` as its records are."""

    def __init__(
        self,
        store: MessageStore,
        writer: StoreWriter,
        report: SalvageReport,
        state: OpenState | None,
    ) -> None:
        self._store, self._writer, self._report, self._state = store, writer, report, state
        self._moved = None if state is None else MovedRecords(state, writer)
        self._config = CarriedConfig(store.path)
        self._committed = [
            (group, QueueId(topic, queue_id), offset)
            for group, topic, queue_id, offset in self._config.committed
            if not is_group_of_broker(group) and not topic.startswith(LMQ_PREFIX)
        ]
        # Where a group goes on: the first message that it was given and did not acknowledge, else its offset.
        self._starts: dict[tuple[str, QueueId], int] = {}
        for group, queue, offset in self._committed:
            given = None if state is None else state.given.get((group, queue))
            self._starts[group, queue] = offset if given is None else min(offset, given.first)
        self._offsets = moved_offsets((queue, start) for (_, queue), start in self._starts.items())
        if state is not None:
            self._config.write_plain(writer.path)
        for topic, attributes in _declared(store):
            writer.declare_topic(topic, attributes=attributes)

    def take(self, piece: SoundRun | Extent) -> None:
        """Write the records of a piece of the log, or report what it is."""
        if not isinstance(piece, SoundRun):
            _skip(self._store, piece, self._report)
            return
        headers = _without_bare(piece.headers, self._report)
        for rows in in_portions(headers.total, _BATCH_BYTES):
            self._save(headers.take(rows))
        self._report.log_end = piece.stop
        self._report.no_loss_bytes += piece.frame * len(piece.headers)

    def _save(self, headers: Headers) -> None:
        batch, place = as_written(headers), headers.at + headers.base
        if self._moved is None:
            parts: Iterable[AcceptedRows] = [append_accepted(self._writer, batch)]
        else:
            parts = self._moved.append(batch, headers.queue_offset, place)
        copied = refused = 0
        for part in parts:
            copied += int(headers.total[part.rows].sum())
            for row, error in part.refused:  # what the target's files cannot hold
                start, size, reason = int(place[row]), int(headers.total[row]), error.reason
                refused += size
                self._report.refused[reason] = self._report.refused.get(reason, 0) + 1
                _add_skipped(self._report, Skipped(start, start + size, "refused", reason))
            self._count(batch, headers, part)
        self._report.ended_bytes += int(headers.total.sum()) - copied - refused

    def _count(self, batch: pa.RecordBatch, headers: Headers, part: AcceptedRows) -> None:
        report, saved = self._report, headers.take(part.rows)
        report.messages += len(saved)
        report.record_bytes += int(saved.total.sum())
        topics = batch["topic"].take(pa.array(part.rows)).dictionary_encode()
        names, codes = topics.dictionary.to_pylist(), topics.indices.to_numpy()
        for name, count in zip(names, np.bincount(codes, minlength=len(names)), strict=True):
            report.topics[name] += int(count)
        if self._starts:
            self._note_offsets(names, codes, saved, part.places.queue_offset)

    def _note_offsets(self, names: list[str], codes: Ints, saved: Headers, new: Ints) -> None:
        rows = np.flatnonzero(enters_queue(saved.sys_flag))
        order = rows[np.lexsort((rows, saved.queue_id[rows], codes[rows]))]
        keys = np.stack([codes[order], saved.queue_id[order]])
        ends = np.flatnonzero((np.diff(keys) != 0).any(axis=0)) + 1
        for some in np.split(order, ends) if len(order) else ():
            queue = QueueId(names[codes[some[0]]], int(saved.queue_id[some[0]]))
            if queue in self._offsets:
                self._offsets[queue].note(saved.queue_offset[some], new[some])

    def finish(self) -> None:
        """Write what names the new offsets, and complete the report."""
        report, state = self._report, self._state
        if state is None or self._moved is None:
            return
        report.ended = self._moved.left_out
        report.waiting, report.without_copy = len(state.waiting), state.delivered_without_copy
        report.open_transactions = state.open_transactions
        report.config_unread = list(dict.fromkeys((*self._config.unread, *state.unread)))
        delayed = [queue.queue_id for queue in self._writer.queues(SCHEDULE_TOPIC)]
        if delayed:
            write_delay_offsets(self._writer.path, delayed)
        table: dict[str, dict[int, int]] = {}
        for group, queue, offset in self._committed:
            end, start = self._writer.max_offset(*queue), self._starts[group, queue]
            new = self._offsets[queue].new_of(start, end)
            table.setdefault(f"{queue.topic}@{group}", {})[queue.queue_id] = new
            if start < offset:
                report.not_acknowledged += state.given[group, queue].messages
                report.given_again += offset - start
        report.group_offsets = len(self._committed)
        self._config.write_offsets(self._writer.path, table)


def _declared(store: MessageStore) -> Iterator[tuple[str, dict[str, Any]]]:
    """The attributes of the topics with BatchConsumeQueues, which their records need."""
    declared = declared_topics(store.path)
    folders = store.view.folders().items()
    wanted = batch_topics(declared) | {queue.topic for queue, batch in folders if batch}
    if not declared:  # then only the records are left to tell
        wanted |= _topics_of_inner_batches(store)
    for topic in sorted(wanted):
        attributes = declared.get(topic, {}).get("attributes") or {}
        yield topic, {**attributes, **BATCH["attributes"]}


def _topics_of_inner_batches(store: MessageStore) -> set[str]:
    topics: set[str] = set()
    for piece in walk(store.log, check_crc=False):
        if isinstance(piece, SoundRun):
            rows = np.flatnonzero(piece.headers.sys_flag & SysFlag.INNER_BATCH)
            if len(rows):
                topics.update(stored_topics(piece.headers.take(rows)).unique().to_pylist())
    return topics


def _has_record_crcs(store: MessageStore) -> bool:
    """Whether the newest file has record CRCs. If so, the target gets new ones."""
    last = store.log.last_file()
    runs = walk(store.log, None if last is None else last.base)
    return any(len(record_crc_rows(run.headers)) > 0 for run in runs if isinstance(run, SoundRun))


def _without_bare(headers: Headers, report: SalvageReport) -> Headers:
    """The headers without records that lost their record CRC by damage: those whose neighbours have
    one.

    The first and last record of a run have damage or a file's end beside them. For them, the
    previous intact record decides.
    """
    has = np.full(len(headers) + 2, report.with_record_crcs)
    has[1:-1] = False
    has[1 + record_crc_rows(headers)] = True
    bare = ~has[1:-1] & has[:-2] & has[2:]
    kept = headers.take(~bare)
    if len(kept):
        report.with_record_crcs = bool(has[1:-1][~bare][-1])
    for row in np.flatnonzero(bare).tolist():
        start = int(headers.at[row]) + headers.base
        stop = start + int(headers.total[row])
        _add_skipped(report, Skipped(start, stop, "damaged", "its record CRC is missing"))
    return kept


def as_written(headers: Headers) -> pa.RecordBatch:
    """Records as a batch for `StoreWriter.append_batch`, which writes the same records at other
    positions."""
    return pa.RecordBatch.from_pydict(
        {
            "topic": stored_topics(headers),
            "queueId": pa.array(headers.queue_id),
            "body": stored_bodies(headers),
            "rawProperties": stored_properties(headers),
            "flag": pa.array(headers.flag),
            "sysFlag": pa.array(headers.sys_flag),
            "bornTimestamp": pa.array(headers.born_timestamp),
            "bornHost": hosts(headers, of_store=False),
            "storeTimestamp": pa.array(headers.store_timestamp),
            "storeHost": hosts(headers, of_store=True),
            "reconsumeTimes": pa.array(headers.reconsume_times),
            "preparedTransactionOffset": pa.array(headers.prepared_transaction_offset),
        }
    )


def _skip(store: MessageStore, extent: Extent, report: SalvageReport) -> None:
    closed = was_closed(store.path)
    rest = closed and extent.gap is Gap.TORN and page_rest(store.log, extent.start) is not None
    if extent.gap is None or extent.gap in _NO_LOSS or rest:
        report.no_loss_bytes += extent.stop - extent.start
        return
    _add_skipped(report, Skipped(extent.start, extent.stop, extent.gap.value, extent.reason))


def _add_skipped(report: SalvageReport, skipped: Skipped) -> None:
    report.skipped_bytes += skipped.stop - skipped.start
    report.skipped_ranges += 1
    if len(report.skipped) < _SKIPPED_KEPT:
        report.skipped.append(skipped)
