"""The entries of a DLedger log compared with their records, with each other, and with the log's index.

Source: DLedgerMmapFileStore#recover is what a member checks when it starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rmq_store.commitlog.walk import RecordOrGap, SoundRun
from rmq_store.config.dledger import members_in
from rmq_store.errors import StoreError
from rmq_store.files.segment_chain import SegmentChain
from rmq_store.format.byte_layout import Ints, Mask
from rmq_store.format.record import BLANK, ENTRY_HEAD, ENTRY_HEAD_SIZE, INDEX_UNIT, NORMAL, Gap
from rmq_store.reading.store_reader import StoreReader
from rmq_store.verify.findings import Finding, Findings, Severity, a_warning

Heads = npt.NDArray[Any]

_STOPS = "A member that recovers this file ends its log here, and cuts off what follows"
_UNUSED = ("channel", "chain_crc", "body_crc")
_HEAD = (
    "the head of {count} {entries}, the first at log offset {at}, does not fit the record or the place; "
    "the records are intact"
)
_NOT_ZERO = (
    "{count} {entries}, the first at log offset {at}, have a channel, chainCrc or bodyCrc, which no release "
    "writes"
)
_NO_EFFECT = "Nothing reads these fields. Other bytes near them may be damaged too"
_UNIT = (
    "the index of the DLedger log has other values than {count} {entries}, the first at byte {at}"
)
_NO_UNIT = "the index of the DLedger log lacks {count} {entries}, the first at byte {at}"
_REWRITTEN = (
    "Readers do not use it. A member that starts writes it again for its last three files; a member that "
    "is behind cannot get older entries. Copy the member's folder from another one"
)


@dataclass(frozen=True, slots=True)
class EntrySpan:
    """Consecutive entries of a log, by the first and the last of them. Picklable."""

    start: int  # log offsets, half-open
    stop: int
    index: int
    term: int
    last_index: int
    last_term: int


class EntryChecks:
    """Checks the entries of a part of the log, piece by piece."""

    def __init__(self, store: StoreReader, findings: Findings) -> None:
        self._log, self._findings = store.log, findings
        self._units = _units_of(store)
        self.spans: list[EntrySpan] = []

    def take(self, piece: SoundRun | RecordOrGap) -> None:
        """Check the entries of a piece of the log."""
        frame = self._log.frame_size_at(piece.start)
        if isinstance(piece, SoundRun) and frame:
            headers = piece.headers
            places = headers.at[:, None] + np.arange(-frame, 0)
            heads = headers.window[places].reshape(-1).view(ENTRY_HEAD)
            self._check(heads, headers.at + headers.base - frame, headers.total, piece.stop)
        elif isinstance(piece, RecordOrGap) and piece.gap is Gap.FILLER and frame:
            raw = self._log.chain.read(piece.start, min(piece.start + ENTRY_HEAD_SIZE, piece.stop))
            if len(raw) == ENTRY_HEAD_SIZE and raw.view(ENTRY_HEAD)["magic"][0] != BLANK:
                places, nothing = np.array([piece.start]), np.zeros(1, dtype=np.int64)
                self._check(raw.view(ENTRY_HEAD), places, nothing, piece.stop)

    def _check(self, heads: Heads, places: Ints, sizes: Ints, stop: int) -> None:
        wrong = (heads["pos"] != places) | (heads["body_length"] != sizes)
        wrong |= heads["size"] != sizes + ENTRY_HEAD_SIZE
        wrong |= (sizes > 0) & (heads["magic"] != NORMAL)
        self._note("dledger-entry-head", _HEAD, wrong, places, _STOPS)
        unused = np.any([heads[name] != 0 for name in _UNUSED], axis=0)
        self._note("dledger-entry-unused", _NOT_ZERO, unused, places, _NO_EFFECT, Severity.NOTE)
        rows = np.flatnonzero(~wrong)
        if len(rows):
            self._note_order(heads[rows], places[rows], stop)
            self._compare_index(heads[rows], places[rows])

    def _note_order(self, heads: Heads, places: Ints, stop: int) -> None:
        index, term = heads["index"].astype(np.int64), heads["term"].astype(np.int64)
        breaks = np.flatnonzero((np.diff(index) != 1) | (np.diff(term) < 0)) + 1
        for first, last in pairwise([0, *breaks.tolist(), len(index)]):
            end = stop if last == len(index) else int(places[last])
            numbers = (index[first], term[first], index[last - 1], term[last - 1])
            self.spans.append(EntrySpan(int(places[first]), end, *map(int, numbers)))
        self.spans[:] = joined_spans(self.spans)

    def _compare_index(self, heads: Heads, places: Ints) -> None:
        if self._units is None:
            return
        index = heads["index"].astype(np.int64)
        units = index_units_at(self._units, index)
        written = units["magic"] != 0
        wrong = written & (units["pos"] != places)
        for name in ("magic", "size", "index", "term"):
            wrong |= written & (units[name] != heads[name])
        at = index * INDEX_UNIT.itemsize
        for meaning, rows in ((_UNIT, wrong), (_NO_UNIT, ~written)):
            self._note("dledger-index", meaning, rows, at, _REWRITTEN, chain=self._units)

    def _note(
        self,
        code: str,
        meaning: str,
        wrong: Mask,
        places: Ints,
        advice: str,
        severity: Severity = Severity.WARNING,
        chain: SegmentChain | None = None,
    ) -> None:
        """Add a finding for the rows that are wrong. `places`: in the log, or in another `chain`."""
        rows = np.flatnonzero(wrong)
        if not len(rows):
            return
        first, count = int(places[rows[0]]), len(rows)
        text = meaning.format(count=count, entries="entry" if count == 1 else "entries", at=first)
        files = chain or self._log.chain
        segment = files.segment_at(first)
        path = files.folders[0] if segment is None else segment.path
        start = None if segment is None else first - segment.base
        self._findings.add(Finding(severity, code, path, text, advice, start, None, count))


def joined_spans(spans: Sequence[EntrySpan]) -> list[EntrySpan]:
    """The spans, with those joined that follow each other in the log, by index and by term."""
    merged: list[EntrySpan] = []
    for span in spans:
        last = merged[-1] if merged else None
        if last is not None and _follows(last, span) and last.stop == span.start:
            merged[-1] = replace(span, start=last.start, index=last.index, term=last.term)
        else:
            merged.append(span)
    return merged


def _follows(last: EntrySpan, span: EntrySpan) -> bool:
    return span.index == last.last_index + 1 and span.term >= last.last_term


def entry_findings(store: StoreReader, spans: Sequence[EntrySpan]) -> Iterator[Finding]:
    """Findings for entries that do not follow those before them, and for an index that has one right behind
    the last one of the log. `spans`: of the whole log, sorted."""
    for last, span in pairwise(spans):
        # Filler or damage lies between them, or the numbers jump.
        is_after = span.index > last.last_index and span.term >= last.last_term
        if _follows(last, span) or (last.stop < span.start and is_after):
            continue
        segment = store.log.chain.segment_at(span.start)
        yield a_warning(
            "dledger-entry-order",
            store.log.path_at(span.start),
            f"entry {span.index} of term {span.term} follows entry {last.last_index} of term "
            f"{last.last_term}",
            _STOPS,
            None if segment is None else span.start - segment.base,
        )
    start, end = store.log_range()
    units = _units_of(store)
    if (
        units is None
        or not spans
        or not store.log.frame_size_at(start if end == start else end - 1)
    ):
        return
    number = spans[-1].last_index + 1
    unit = index_units_at(units, np.array([number]))[0]
    if unit["index"] == number and unit["magic"] != 0 and int(unit["pos"]) >= end:
        yield Finding(
            Severity.WARNING if store.snapshot().closed else Severity.NOTE,
            "dledger-index-ahead",
            units.folders[0],
            f"the index of the DLedger log has entry {number}, at log offset {unit['pos']}, and the log "
            f"ends at {end}",
            "The end of the log is lost, or a leader of a later term had it cut off. Other members have "
            "what a majority agreed on",
        )


def _units_of(store: StoreReader) -> SegmentChain | None:
    for member in members_in(Path(store.path), store.config)[:1]:
        with suppress(StoreError):
            units = SegmentChain([member.index])
            return units if units.segments else None
    return None


def index_units_at(units: SegmentChain, index: Ints) -> Heads:
    """The units of some entries in the index of a DLedger log; zeros where no file has one."""
    heads = np.zeros(len(index), dtype=INDEX_UNIT)
    width, per_file = INDEX_UNIT.itemsize, max(1, units.file_size // INDEX_UNIT.itemsize)
    possible = (index >= 0) & (index < 2**58)
    for number in np.unique(index[possible] // per_file).tolist():
        segment = units.segment_at(number * units.file_size)
        rows = np.flatnonzero(possible & (index // per_file == number))
        if segment is None:
            continue
        at = index[rows] * width
        first, last = int(at.min()), int(at.max()) + width
        with units.window(first, last) as window:
            heads[rows] = window.bytes.view(INDEX_UNIT)[(at - first) // width]
    return heads
