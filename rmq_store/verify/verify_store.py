"""verify: check that log, queues, index, checkpoint and configuration agree. Read-only.

The log is read once, file by file. Each part can run in another process, and the parts are merged.
All processes use the same snapshot of the store, so that they see the same state.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from rmq_store.arrow.column_values import DecodedRecords
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import MisnamedFile, files_without_a_byte, misnamed_files
from rmq_store.commitlog.walk import (
    Progress,
    RecordOrGap,
    SoundRun,
    current_end,
    end_of_page_rest,
    next_record_or_gap,
    walk,
)
from rmq_store.config.dledger import DATA, dledger_folders, members_in
from rmq_store.config.rocksdb import rocksdb_queues
from rmq_store.errors import (
    AccessError,
    BodyError,
    CorruptQueueError,
    CorruptRecordError,
    ListedAt,
    LogOffset,
    StoreError,
)
from rmq_store.files.segments import SegmentFile
from rmq_store.format.byte_layout import CHECKPOINT_FILE, INDEX_DIR, RECORD_HEAD, Bytes, Ints
from rmq_store.format.compression import SysFlag, begin_compressed, decompress
from rmq_store.format.queues import QueueId
from rmq_store.format.record import Gap
from rmq_store.index.index_file_reader import list_index_files, open_index_files
from rmq_store.markers import Checkpoint
from rmq_store.reading.store_reader import StoreReader
from rmq_store.recovery.recover_store import LOG_FILE, OTHER, QUEUE_FILE, BrokerStart
from rmq_store.snapshot.opening import REBUILD_QUEUES
from rmq_store.text.sizes import counted
from rmq_store.text.times import shown_time
from rmq_store.verify.compacted_files import compaction_findings
from rmq_store.verify.config_against_store import config_findings, progress_findings, start_findings
from rmq_store.verify.dledger_entries import EntryChecks, EntrySpan, entry_findings, joined_spans
from rmq_store.verify.findings import (
    BEING_WRITTEN,
    Finding,
    Findings,
    Severity,
    a_note,
    a_warning,
    an_error,
)
from rmq_store.verify.index_against_log import IndexFileStats, IndexPart, check_files
from rmq_store.verify.queues_against_log import (
    LOST,
    ListedCheck,
    QueueTally,
    check_entries,
    findings_of_unlisted,
    queue_folder,
)
from rmq_store.verify.verdict import LOST_END, Verdict, broker_start_on, messages_cut, verdict_of

_SALVAGE = "Copy the intact messages into a new store: rmqstore salvage"
# Of a missing file whose empty remains are there: `log-file-refused` is reported too.
_EMPTY_FILE = (
    "the files of these {size} bytes are empty or gone, but the log continues after them. No broker "
    "starts while an empty file is there; without one, consumers and queries by key find nothing there"
)
# The finding for each kind of extent that is not a record. Other kinds are normal.
_LOG_FINDINGS = {
    Gap.DAMAGED: (
        Severity.ERROR,
        "log-damaged",
        "{size} damaged bytes; the log continues after them: {reason}. A broker that has to recover cuts the "
        "log here, but takes a record that lacks a part of its properties",
        _SALVAGE,
    ),
    Gap.MISSING: (
        Severity.ERROR,
        "log-file-missing",
        "no file has these {size} bytes, but the log continues after them. A broker starts all the "
        "same; consumers and queries by key find nothing there",
        f"Restore the file. {_SALVAGE}",
    ),
    Gap.TORN: (
        Severity.NOTE,
        "log-torn-tail",
        "the writer stopped inside a record: {reason}",
        "Normal after a crash and in a copy of a running store; a broker cuts it off when it starts",
    ),
    Gap.GHOST: (
        Severity.WARNING,
        "log-ghost",
        "an intact record of {size} bytes from another log offset: left from before the file was reused",
        "Readers skip it; brokers from 5.5.0 with writeWithoutMmap serve it as a message",
    ),
    Gap.STALE: (
        Severity.NOTE,
        "log-stale-bytes",
        "{size} bytes left from before the log was cut here",
        "Normal after a recovery: the broker writes over them",
    ),
}


_MOST_DAMAGE = 10_000  # places of one part of the log with which entries are compared

# What the index, the checkpoint or a consumer says of records after the end that the log had at first.
_AHEAD = (
    *("log-end-lost", "checkpoint-ahead", "index-beyond-log", "consumer-ahead"),
    *("pull-ahead", "pop-ahead", "delay-ahead", "timer-ahead"),
)
_PLAIN = ("path", "broker_name", "log_start", "log_end", "records", "record_bytes", "queues", "lag")
_PARTS = 16  # of a log of a few large files, so that several processes end at about the same time
_LEAST_PART = 64 << 20  # bytes
_DAMAGED = (Gap.DAMAGED, Gap.TORN, Gap.STALE, Gap.MISSING)
_REST_OR_TORN = (
    "{size} bytes after the last record are not a record: the writer stopped inside one, or they are "
    "the rest of a page (writeWithoutMmap): {reason}"
)
_CUT_LATER = (
    "the bytes after the last record are not a record, although the store was closed cleanly: "
    "{reason}"
)
_CUT_ADVICE = (
    "A record there was damaged or cut off later; the findings about queues and the checkpoint show "
    "whether messages are lost. Restore the file from a copy"
)
_PAGE_REST = (
    "{size} bytes after the last record are not a record. The store was closed cleanly, and no queue "
    "lists a record there"
)
_PAGE_REST_ADVICE = (
    "A broker of 5.5.0 or later with writeWithoutMmap=true leaves such bytes, up to the end of a page, "
    "and writes over them"
)
# By the kind of a file with which no broker starts: the code, and what to do.
_REFUSED = {
    LOG_FILE: (
        "log-file-refused",
        "Restore the file, or move it away if it is none of the log. rmqstore recover gives a short "
        f"file of the log its size again, without what it lost. {_SALVAGE}",
    ),
    QUEUE_FILE: (
        "queue-file-refused",
        "Move the file away if it is none of the queue, else rebuild queues and index from the log "
        "into a new store: rmqstore rebuild STORE --to NEW",
    ),
    OTHER: ("file-refused", "Restore the file from a copy"),
}
_SAID_TO_BE_REFUSED = ("config-unreadable", "config-missing", "log-file-misnamed")
_FRONT = 4  # bytes of a body that show a compression
_BESIDE = (-1, -1)  # no part of a log


class RecordsAfterEnd(NamedTuple):
    """Sound records after the end that the log had when the store was opened."""

    start: int  # log offsets, half-open
    stop: int
    records: int
    path: str
    base: int  # log offset of the file's first byte


class ChecksBesideLog(NamedTuple):
    """What does not depend on the records of the log: the files of the index, and a broker's start."""

    findings: Findings
    health: Sequence[IndexFileStats]
    start: BrokerStart | None

    @classmethod
    def of(cls, store: StoreReader) -> ChecksBesideLog:
        """That of a store."""
        findings = Findings()
        return cls(findings, check_files(store, findings), broker_start_on(store))


@dataclass(slots=True)
class CheckedPart:
    """The findings and counts of a part of the log, or what is beside it. Parts add up. Picklable."""

    findings: Findings = field(default_factory=Findings)
    tally: QueueTally = field(default_factory=QueueTally)
    records: int = 0
    record_bytes: int = 0
    last_timestamp: int = 0  # storeTimestamp, the highest
    unindexed: int = 0  # records after the end of the index
    after_end: list[RecordsAfterEnd] = field(default_factory=list)
    damage: list[tuple[int, int]] = field(default_factory=list)  # log offsets, half-open; the first
    entries: list[EntrySpan] = field(default_factory=list)  # of a DLedger log
    beside: ChecksBesideLog | None = None

    def add(self, other: CheckedPart) -> None:
        """Add another part."""
        self.findings.add_all(other.findings)
        self.tally.add(other.tally)
        self.records += other.records
        self.record_bytes += other.record_bytes
        self.last_timestamp = max(self.last_timestamp, other.last_timestamp)
        self.unindexed += other.unindexed
        self.after_end += other.after_end
        self.damage += other.damage
        self.entries = joined_spans([*self.entries, *other.entries])
        self.beside = self.beside or other.beside


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of verify. `lag`: records that no queue lists yet."""

    path: str
    broker_name: str
    log_start: int
    log_end: int
    records: int
    record_bytes: int
    queues: int
    lag: int
    index: Sequence[IndexFileStats]
    findings: Findings
    verdict: Verdict

    @property
    def nothing_wrong(self) -> bool:
        """Whether there are only notes, or no findings."""
        return self.findings.nothing_wrong

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values for JSON."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "index": [asdict(health) for health in self.index],
            "nothing_wrong": self.nothing_wrong,
            "verdict": self.verdict.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
        }


def verify(
    store: StoreReader, progress: Progress | None = None, *, bodies: bool = False
) -> VerifyReport:
    """Check a whole store. `bodies`: open all compressed bodies; their first bytes are checked anyway.

    Damage becomes findings. Raises StoreError only if the store cannot be checked.
    """
    parts = (check_log(store, *part, progress, bodies=bodies) for part in log_parts(store))
    return VerifyQuestion(bodies).merge(store, parts)


def log_parts(store: StoreReader, least: int = _LEAST_PART) -> list[tuple[int, int]]:
    """The log cut into parts that can be checked separately, at starts of records or gaps.

    One per file, with the gap after it; a file that is long for its log is cut, into parts of `least` bytes
    or more.
    """
    chain = store.log.chain
    size = max(least, (chain.stop - chain.start) // _PARTS)
    stops = [*(file.base for file in chain.segments[1:]), chain.stop]
    files = zip(chain.segments, stops, strict=False)
    return [part for file, stop in files for part in pairwise(_cuts(store, file, stop, size))]


def _cuts(store: StoreReader, file: SegmentFile, stop: int, size: int) -> list[int]:
    """Where to cut the log from a file to `stop` into parts of `size` bytes, its ends included."""
    log, start = store.log, file.base
    end = min(log.chain.segment_end(file), store.log_range()[1])
    count = (end - start) // size
    # Entries of a DLedger log are held against those before them; of a remote one, a look costs a request.
    if count < 2 or log.frame_size_at(start) or log.chain.cost.looks_at_once > 1:
        return [start, stop]
    places = (start + (end - start) * number // count for number in range(1, count))
    cuts = {next_record_or_gap(log, file, place, check_crc=True)[0] for place in places}
    return sorted({start, *cuts, stop})


def check_log(
    store: StoreReader,
    start: int,
    stop: int,
    progress: Progress | None = None,
    *,
    bodies: bool = False,
) -> CheckedPart:
    """Check one part of `log_parts`, and the queue entries and index items of its records."""
    check = _PartCheck(store, start, stop, bodies)
    at = start
    # The end is where the log ended when the store was opened. A broker may have written on: a run
    # of records that crosses the end is cut there, for the queues were looked at before.
    end = min(max(start, store.log_range()[1]), stop)
    for piece in chain(walk(store.log, start, end), walk(store.log, end, stop)):
        check.take(piece)
        if progress is not None:
            progress(piece.stop - at)
        at = piece.stop
    return check.finish()


class _PartCheck:
    """The checks of one part of the log."""

    def __init__(self, store: StoreReader, start: int, stop: int, bodies: bool) -> None:
        self.store, self.start, self.part = store, start, CheckedPart()
        self.opens_bodies = bodies
        self.unopened, self.first_unopened = 0, -1  # bodies, and a log offset
        self.index = IndexPart(store, start, stop)
        self.listed = ListedCheck(store, self.part.tally, self.part.findings)
        self.log_end = store.log_range()[1]
        self.entries = EntryChecks(store, self.part.findings)
        file = store.log.chain.segment_at(start)
        self.misnamed = [] if file is None else list(misnamed_files(store.log, [file]))

    def take(self, piece: SoundRun | RecordOrGap) -> None:
        """Check the next piece of the log."""
        if piece.start < self.log_end:
            self.entries.take(piece)
        if not isinstance(piece, SoundRun):
            if not (self.misnamed and piece.gap is Gap.GHOST):
                _note_gap(self.store, piece, self.part)
            if piece.gap in _DAMAGED:
                self.index.excuse_damaged_range(piece.start, piece.stop)
        elif piece.start >= self.log_end:
            of_file = len(piece.headers), piece.segment.path, piece.segment.base
            self.part.after_end.append(RecordsAfterEnd(piece.start, piece.stop, *of_file))
        else:
            self._check(piece.headers)

    def finish(self) -> CheckedPart:
        """Complete the checks. Returns the result."""
        self.part.entries = self.entries.spans
        self.listed.finish()
        self.part.unindexed += self.index.conclude(self.part.findings)
        begun = (misnamed for misnamed in self.misnamed if misnamed.file.base == self.start)
        self.part.findings.add_all(map(_misnamed, begun))
        if self.unopened:
            self.part.findings.add(_unopened(self.store, self.unopened, self.first_unopened))
        return self.part

    def _check(self, headers: Headers) -> None:
        records = DecodedRecords.of(headers)
        self.listed.add(self.store.view.requests_of(records))
        self.index.check(records)
        unopened = unopened_bodies(headers, whole=self.opens_bodies)
        if len(unopened) and not self.unopened:
            self.first_unopened = int(headers.at[unopened[0]]) + headers.base
        self.unopened += len(unopened)
        part, stored_at = self.part, headers.store_timestamp
        part.records += len(headers)
        part.record_bytes += int(headers.total.sum())
        part.last_timestamp = max(part.last_timestamp, int(stored_at.max()))


def _unopened(store: StoreReader, count: int, first: int) -> Finding:
    return a_warning(
        "body-not-compressed",
        store.log.path_at(first),
        f"{counted(count, 'body')} marked as compressed that no client opens, whole as stored; the first: "
        f"log offset {first}. A consumer stops there",
        "Column rawBody has the bytes. Let the group pass the message by: rmqstore offsets, or the broker's "
        "own tools",
        count=count,
    )


def _misnamed(file: MisnamedFile) -> Finding:
    return an_error(
        "log-file-misnamed",
        file.file.path,
        f"{file}. No record of it is at its place, so neither readers nor brokers reach one",
        f"{file.advice}. Then verify again: other findings may be gone",
    )


def _refused_files(start: BrokerStart | None, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Findings for the files with which no broker starts, but for those that `findings` say so of."""
    said = {finding.path for finding in findings if finding.code in _SAID_TO_BE_REFUSED}
    for refused in () if start is None else start.refusals:
        code, advice = _REFUSED[refused.kind]
        path = refused.path.removesuffix(".bak")
        if said.isdisjoint((path, os.path.dirname(path))):
            meaning = f"{refused.reason}. No broker starts on it"
            yield an_error(code, refused.path, meaning, refused.remedy or advice)


def _broker_findings(store: StoreReader, start: BrokerStart | None) -> Iterator[Finding]:
    """Findings for what a broker does to the queues when it starts."""
    if start is None or start.plan is None:
        return
    for queue in start.plan.empty_entries:
        yield an_error(
            "queue-file-empty",
            store.view.folder(queue),
            f"the last file of queue {queue.name} has no entry, as a loss of power leaves it: a broker that "
            "starts lists an entry of zeros there, and a consumer stops at it",
            "Delete the file before a broker starts: rmqstore recover STORE --apply",
        )
    cuts = messages_cut(store.snapshot(), start)
    if cuts:
        yield a_warning(
            "broker-cuts",
            str(store.path),
            f"a broker that starts takes {counted(cuts, 'message')} from the queues",
            "Do what the verdict says before a broker starts",
            count=cuts,
        )


def _lost_end(store: StoreReader) -> Iterator[Finding]:
    """The finding for an end of the log that is lost, as queues prove it."""
    end = store.log_range()[1]
    try:
        lost = store.opening.lost_end
    except AccessError:  # of the checkpoint, which start_findings reports
        return
    if lost is not None and store.opening.is_listed_after_end:
        yield an_error(
            "log-end-lost",
            store.log.path_at(end),
            f"{lost.reason}. It ends at log offset {end}",
            f"{lost.advice}, before a broker starts on this store and before any repair",
        )
    elif store.opening.after_log:
        yield a_note(
            "log-ends-before-queues",
            store.log.path_at(end),
            next(store.opening.lines_after_log()),
            "A broker that starts takes these entries from the queues",
        )


def _grown(store: StoreReader, now: int) -> Iterator[Finding]:
    end = store.log_range()[1]
    if now > end:
        yield a_note(
            "log-grew",
            store.log.chain.folders[0],
            f"the log grew by {now - end} bytes while the store was examined, from log offset {end} "
            "on; what arrived was not examined, nor whether index, checkpoint and consumers are ahead",
            BEING_WRITTEN,
        )


def _unreached(piece: RecordsAfterEnd) -> Finding:
    return a_warning(
        "log-records-behind-end",
        piece.path,
        f"{piece.records} intact records are after the end of the log; readers do not reach them: "
        "they are older than the records before them, as a recovery that cut the log leaves them",
        _SALVAGE,
        piece.start - piece.base,
        piece.stop - piece.base,
        piece.records,
    )


def _note_gap(store: StoreReader, extent: RecordOrGap, of_part: CheckedPart) -> None:
    gap = extent.gap
    if gap is Gap.GHOST and not _is_left_over(store, extent):
        gap = Gap.DAMAGED
        extent = replace(extent, gap=gap, reason="a record whose physicalOffset is wrong")
    kind = _LOG_FINDINGS.get(gap) if gap is not None else None
    if kind is None:
        return
    severity, code, meaning, advice = kind
    segment = store.log.chain.segment_at(extent.start)
    base = 0 if segment is None else segment.base
    if extent.start >= store.log_range()[1] and severity is Severity.ERROR:
        # Bytes after the end of the log were cut off, so they cannot be damage.
        severity, code, meaning, advice = _LOG_FINDINGS[Gap.STALE]
    elif severity is Severity.ERROR and len(of_part.damage) < _MOST_DAMAGE:
        of_part.damage.append((extent.start, extent.stop))
    stop = extent.stop
    if extent.gap is Gap.MISSING and any(
        extent.start <= int(path.name) < extent.stop for path in files_without_a_byte(store.log)
    ):
        meaning = _EMPTY_FILE
    if extent.gap in (Gap.TORN, Gap.STALE):
        code, meaning, advice, stop = _about_end(store, extent, (code, meaning, advice))
    of_part.findings.add(
        Finding(
            severity,
            code,
            store.log.path_at(extent.start),
            meaning.format(size=stop - extent.start, reason=extent.reason),
            advice,
            extent.start - base,
            stop - base,
        )
    )


def _is_left_over(store: StoreReader, ghost: RecordOrGap) -> bool:
    """Whether a record that names another place was there once: it has expired, and no queue lists it
    here; or it is there now too."""
    chain, size = store.log.chain, ghost.stop - ghost.start
    raw = chain.read(ghost.start, ghost.stop)
    named = int(raw[: RECORD_HEAD.itemsize].view(RECORD_HEAD)[0]["physical_offset"])
    if 0 <= named < store.log_range()[0]:
        return not _is_listed(store, raw, ghost.start)
    return store.log.is_record(named, size) and np.array_equal(raw, chain.read(named, named + size))


def _is_listed(store: StoreReader, record: Bytes, log_offset: int) -> bool:
    """Whether a queue that lists this record has an entry that leads to `log_offset`."""
    headers = Headers(record, np.zeros(1, dtype=np.int64), log_offset)
    requests = store.view.requests_of(DecodedRecords.of(headers))
    for queue, rows in requests.by_queue():
        state, offset = store.snapshot().queues.get(queue), int(requests.offset[rows[0]])
        is_there = state is not None and state.min_offset <= offset < state.max_offset
        if is_there and store.log_offset_of(queue, offset) == log_offset:
            return True
    return False


def _about_end(
    store: StoreReader, extent: RecordOrGap, usual: tuple[str, str, str]
) -> tuple[str, str, str, int]:
    """Code, meaning and advice for bytes after the last record, and where they stop.

    `usual`: those for their kind in a store that was not closed.
    """
    rest, torn = end_of_page_rest(store.log, extent.start), extent.gap is Gap.TORN
    stop = extent.stop if rest is None else rest
    if not store.snapshot().closed:
        code, meaning, advice = usual
        return code, _REST_OR_TORN if torn and rest is not None else meaning, advice, stop
    if rest is not None and not store.opening.is_listed_beyond(extent.start):
        return "log-page-rest", _PAGE_REST, _PAGE_REST_ADVICE, stop
    return ("log-torn-tail", _CUT_LATER, _CUT_ADVICE, stop) if torn else (*usual, stop)


def conclude(store: StoreReader, whole: CheckedPart) -> VerifyReport:
    """The report of a store whose whole log was checked. Adds the checks outside the log."""
    findings, end = whole.findings, store.log_range()[1]
    findings.add_all(findings_of_unlisted(store, whole.tally))
    lost_end = list(_lost_end(store))
    at_start = list(start_findings(store, whole.records, whole.last_timestamp))
    lacks_end = any(finding.code in LOST_END for finding in (*lost_end, *at_start))
    after = (end, sys.maxsize if lacks_end else max(end, store.log.chain.stop))
    lost: Counter[QueueId] = Counter()
    findings.add_all(check_entries(store, whole.tally, [*whole.damage, after], lost))
    findings.add_all(entry_findings(store, whole.entries))
    index, health, start = whole.beside or ChecksBesideLog.of(store)
    config = list(config_findings(store))
    beside = Findings([*lost_end, *index])
    beside.add_all(_about_index(store, health, whole))
    beside.add_all(at_start)
    beside.add_all(progress_findings(store, whole.tally.queues))
    # Index, checkpoint and offsets follow the log, so its end now is after all that they have just said.
    now = current_end(store.log, end)
    ahead = () if now == end else _AHEAD
    if now > end:
        start = None  # its dry recovery saw what arrived
    findings.add_all(_refused_files(start, [*findings, *config]))
    findings.add_all(_broker_findings(store, start))
    findings.add_all(finding for finding in beside if finding.code not in ahead)
    findings.add_all(_grown(store, now))
    findings.add_all(_unreached(piece) for piece in whole.after_end if piece.start >= now)
    findings.add_all(config)
    findings.add_all(compaction_findings(store))
    findings.add_all(_about_rocksdb(store))
    findings.add_all(_about_dledger(store))
    return VerifyReport(
        str(store.path),
        store.broker_name,
        *store.log_range(),
        whole.records,
        whole.record_bytes,
        len(store.queues()),
        sum(whole.tally.waiting.values()),
        health,
        findings,
        verdict_of(store, list(findings), whole.damage, lost, whole.records, start),
    )


def _about_index(
    store: StoreReader, health: Sequence[IndexFileStats], whole: CheckedPart
) -> Iterator[Finding]:
    folder = str(store.path / INDEX_DIR)
    lost = list(_lost_index(store, whole, len(health)))
    yield from lost
    if lost:
        return
    if not health and whole.records and not list_index_files(folder):
        yield a_note(
            "index-absent",
            folder,
            "there is no index: the broker finds no message by key",
            "Normal with messageIndexEnable=false, and after a crash before the first file was "
            "full. rmqstore rebuild creates one",
        )
    if whole.unindexed:
        unreadable = len(list_index_files(folder)) > len(health)
        yield a_note(
            "not-indexed",
            folder,
            f"{whole.unindexed} records with keys are after the end of the index"
            + (", as far as its files can be read" if unreadable else ""),
            "The damaged index file, which is reported too, may have their keys"
            if unreadable
            else "Normal after a crash and in a copy of a running store",
            count=whole.unindexed,
        )


def _lost_index(store: StoreReader, whole: CheckedPart, readable: int) -> Iterator[Finding]:
    """The finding for an index that ends before the time up to which the checkpoint has flushed it."""
    try:
        said = Checkpoint.read_or_zero(store.path / CHECKPOINT_FILE).index_msg_timestamp
    except AccessError:  # start_findings reports it
        return
    if not said or not whole.records or len(list_index_files(store.path / INDEX_DIR)) > readable:
        return  # an unreadable file, which is reported, may have them
    headers = [file.header for file in open_index_files(store.path, store.config)]
    newest = max((header.end_timestamp for header in headers if header.items), default=0)
    first = store.log.store_time_at(store.log.first_record_offset)
    if (whole.unindexed or not readable) and first is not None and first <= said > newest:
        yield a_warning(
            "index-lost",
            str(store.path / INDEX_DIR),
            f"the checkpoint says that the index had the messages up to {shown_time(said)}, and its files "
            + (f"end at {shown_time(newest)}" if newest else "have no message")
            + ": the broker does not find the others by key",
            "Index files were deleted, or are of zeros. Restore them from a copy, or rebuild the index: "
            "rmqstore rebuild STORE --to NEW",
        )


def _about_rocksdb(store: StoreReader) -> Iterator[Finding]:
    unread = store.view.unread_database
    if unread is not None:
        yield a_note(
            "queues-in-rocksdb",
            str(rocksdb_queues(store.path)),
            "the queues are in a RocksDB database too, which was not examined: all that is said of "
            f"queues is about their files. Light queues (LMQ) may be in the database alone. {unread}",
            "A database beside queue files is normal with rocksdbCQDoubleWriteEnable=true and with "
            "combineCQLoadingCQTypes",
        )
    yield from _inner_batches(store, str(rocksdb_queues(store.path)))


def _inner_batches(store: StoreReader, database: str) -> Iterator[Finding]:
    """Queues in a database that have more messages than entries (DefaultMessageStore#getMessage)."""
    for queue, state in store.snapshot().queues.items():
        units = state.file_stop - state.file_start + (0 if state.tail is None else len(state.tail))
        if not state.batch or state.max_offset - state.min_offset <= units:
            continue
        if store.view.folder(queue) == database:
            yield a_warning(
                "inner-batches-in-rocksdb",
                database,
                f"queue {queue.name} has inner batches, and a RocksDB database lists each "
                "at its first queue offset alone: a broker ends the pull of another one with an error, and "
                "a consumer stays there",
                "rmqstore reads all of them. rmqstore rebuild writes queue files in a new store, from which "
                "brokers serve them",
            )


def _about_dledger(store: StoreReader) -> Iterator[Finding]:
    folders = {folder for member in members_in(store.path, store.config) for folder in member.data}
    for folder in dledger_folders(store.path):
        if folder / DATA not in folders:
            yield a_note(
                "dledger-without-log",
                str(folder),
                "a broker in DLedger mode has used this store, and the folder has no log: messages to which "
                "queue entries lead beyond the log may be in a DLedger log that is not here",
                "Normal if the broker stored nothing in that mode. Otherwise copy the folder completely",
            )


def severities(findings: Iterable[Finding]) -> dict[str, int]:
    """The number of findings per severity."""
    counts = Counter(finding.severity for finding in findings)
    return {severity.value: counts[severity] for severity in Severity}


def count_of_problems(report: VerifyReport) -> str:
    """How many problems were found, and how many findings of each severity."""
    counts = severities(report.findings)
    problems = len(report.findings) - counts[Severity.NOTE.value]
    said = "no problems" if report.nothing_wrong else counted(problems, "problem")
    each = ", ".join(counted(count, name) for name, count in reversed(counts.items()))
    return f"{said} found ({each})"


def unopened_bodies(headers: Headers, *, whole: bool) -> Ints:
    """The rows of bodies that are marked as compressed and that no client opens: its consumer stops there.

    Without `whole` those that do not begin as their compression. A broker that puts a half message back,
    after it asked the producer, leaves the mark on an opened body. Clients take an empty one as it is.
    """
    marked = (headers.sys_flag & SysFlag.COMPRESSED) != 0
    rows: Ints = np.flatnonzero(marked & (headers.body_length > 0))
    if whole:
        return np.array([row for row in rows.tolist() if not _opens(headers, row)], np.int64)
    # After the body is the topic, so that a short body has bytes behind it.
    at = headers.body_at[rows, np.newaxis] + np.arange(_FRONT)
    fronts = headers.window[np.minimum(at, len(headers.window) - 1)]
    begins = begin_compressed(fronts, headers.sys_flag[rows]) & (headers.body_length[rows] > 1)
    return rows[~begins]


def _opens(headers: Headers, row: int) -> bool:
    at, length = int(headers.body_at[row]), int(headers.body_length[row])
    try:
        decompress(headers.window[at : at + length].tobytes(), int(headers.sys_flag[row]))
    except BodyError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class VerifyQuestion:
    """Checks a whole store. A share is a part of `log_parts`, or `_BESIDE`: what is beside the log.

    Progress counts bytes of the log. `bodies`: as in `verify`.
    """

    bodies: bool = False

    def plan(self, store: StoreReader) -> list[tuple[int, int]]:
        """The log ranges to check, as log offsets, and what is beside the log."""
        return [_BESIDE, *log_parts(store)]

    def work(self, store: StoreReader, share: tuple[int, int], progress: Progress) -> CheckedPart:
        """Check one range of the log with the queue entries and index items of its records, or what is beside
        the log."""
        if share == _BESIDE:
            return CheckedPart(beside=ChecksBesideLog.of(store))
        return check_log(store, *share, progress, bodies=self.bodies)

    def weight(self, share: tuple[int, int]) -> int:
        """Bytes of the range."""
        return share[1] - share[0]

    def merge(self, store: StoreReader, parts: Iterable[CheckedPart]) -> VerifyReport:
        """The report. Also checks what no single part of the log shows."""
        whole = CheckedPart()
        for part in parts:
            whole.add(part)
        return conclude(store, whole)


def errors_of_part(
    store: StoreReader, start: int, stop: int, wanted: Callable[[QueueId], bool]
) -> Iterator[StoreError]:
    """An error for each damaged range in a part of `log_parts` to which no `wanted` queue leads a reader,
    and one for each that does not list records of it, or has no files although topics.json has its topic."""
    part = check_log(store, start, stop)
    queues = [queue for queue in store.queues() if wanted(queue)]
    for first, behind in part.damage:
        if any(_leads_into(store, queue, first, behind) for queue in queues):
            continue
        yield CorruptRecordError(
            store.log.path_at(first),
            offset=LogOffset(first),
            reason=f"{behind - first} bytes of the log are damaged, or in no file",
            advice="The messages there are lost, of any queue. rmqstore verify says more",
        )
    for why, run in part.tally.unlisted.items():
        if why.why in LOST and wanted(why.queue):
            yield _not_listed(store, why.queue, run.count, run.ranges[0][0], run.log_offset)
    for queue, parts in part.tally.queueless.items():
        if wanted(queue) and queue.queue_id < store.view.topics.most_queues(queue.topic):
            count = sum(one.records for one in parts)
            yield _not_listed(store, queue, count, -1, min(one.log_offset for one in parts))


def _leads_into(store: StoreReader, queue: QueueId, start: int, stop: int) -> bool:
    at = store.view.offset_at_log(queue, start)
    return at < store.max_offset(*queue) and start <= store.log_offset_of(queue, at) < stop


def _not_listed(
    store: StoreReader, queue: QueueId, count: int, queue_offset: int, log_offset: int
) -> StoreError:
    lists = "does not list" if queue in store.snapshot().queues else "has no files to list"
    return CorruptQueueError(
        queue_folder(store, queue),
        reason=f"queue {queue.name} {lists} {counted(count, 'record')} of it in the log; the first has log "
        f"offset {log_offset}",
        advice=REBUILD_QUEUES,
        entry=ListedAt(*queue, queue_offset, log_offset, 0, count),
    )
