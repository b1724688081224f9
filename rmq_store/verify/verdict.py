"""The verdict on a store: what is lost, whether a broker starts on it, what that cuts, what helps most.

Everything that judges a store repeats it; only `verify` makes it.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rmq_store.commitlog.walk import sound_headers
from rmq_store.config.topics_json import TOPICS_FILE
from rmq_store.errors import StoreError, StoreLockedError, UnsupportedStoreError, shown_path, spoken
from rmq_store.format.queues import QueueId
from rmq_store.reading.store_reader import StoreReader
from rmq_store.recovery.recover_store import (
    LOG_FILE,
    OTHER,
    QUEUE_FILE,
    BrokerStart,
    RefusedFile,
    broker_start,
    plan_recovery,
)
from rmq_store.snapshot.snapshot import StoreSnapshot
from rmq_store.text.sizes import counted
from rmq_store.text.times import shown_time
from rmq_store.verify.config_against_store import is_of_other_store_type, was_without_config
from rmq_store.verify.findings import Finding, Severity

SOUND, FLAWED, DAMAGED = "sound", "flawed", "damaged"

_DANGLING = "queue-dangling-entry"
_UNLISTED = ("queue-misses-record", "queue-missing")  # messages that no consumer gets
_MOVED = ("queue-lists-too-low", "queue-lists-too-high")  # which consumers get elsewhere
_IN_QUEUES = (
    *(*_UNLISTED, "queue-lists-too-high"),  # a rebuild lists those that are too low as they are
    *(_DANGLING, "queue-wrong-tags-code"),
)
_STOPPING = (_UNLISTED[0], "queue-file-empty")  # where consumers stop, whatever the log has
_IN_LOG = ("log-damaged", "log-file-missing", "log-file-misnamed")
LOST_END = ("log-end-lost", "checkpoint-ahead")
"""The codes of findings that say that the log lost its end."""


@dataclass(frozen=True, slots=True)
class LostMessages:
    """Lost messages, as far as queues or the records after them show: how many, of how many queues, and when
    the messages around them were stored (ms). `bytes`: damaged or missing bytes of the log. `are_all`: false
    if some of these bytes lie behind the last entry of every queue, where more messages may be lost."""

    messages: int = 0
    queues: int = 0
    after_ms: int | None = None
    before_ms: int | None = None
    bytes: int = 0
    are_all: bool = True


@dataclass(frozen=True, slots=True)
class NextStep:
    """The command that helps most, with what it keeps and what it cuts."""

    command: str
    effect: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a store. `state`: sound; flawed, if nothing is lost and something is wrong; damaged.

    `unlisted`: messages of the log that no consumer gets; `moved`: those that a queue lists at another queue
    offset than their own. `starts`: whether a broker starts on it; None if one has it open, the log grew, the
    files are not on this host, or the store has RocksDB, is of another storeType, in DLedger mode, or has
    batch queues and was written without configuration.
    `refusals`: the files with which it does not. `cuts`: messages that its start takes from queues, those too
    that queues list after the log's end. `stops_consumers`: whether queues lead to what is not there, or lack
    entries: a pull there fails, or goes on with the next file of the log (DefaultMessageStore#getMessage).
    """

    state: str
    lost: LostMessages
    unlisted: int
    moved: int
    starts: bool | None
    refusals: tuple[RefusedFile, ...]
    cuts: int
    stops_consumers: bool
    help: NextStep | None

    def to_dict(self) -> dict[str, Any]:
        """The verdict as plain values for JSON."""
        lost, helps = self.lost, self.help
        return {
            "state": self.state,
            "lost_messages": lost.messages,
            "lost_queues": lost.queues,
            "lost_are_all": lost.are_all,
            "lost_after": None if lost.after_ms is None else shown_time(lost.after_ms),
            "lost_before": None if lost.before_ms is None else shown_time(lost.before_ms),
            "damaged_bytes": lost.bytes,
            "unlisted_messages": self.unlisted,
            "moved_messages": self.moved,
            "broker_starts": self.starts,
            "broker_refuses": [
                {"path": file.path, "reason": file.reason} for file in self.refusals
            ],
            "broker_cuts": self.cuts,
            "consumers_stop": self.stops_consumers,
            "do": None if helps is None else helps.command,
            "effect": None if helps is None else helps.effect,
        }

    def lines(self) -> Iterator[tuple[str, str]]:
        """What is said of it: a word and a text for each line."""
        yield "verdict", self.sentence()
        yield "broker", self._broker()
        if self.help is not None:
            yield "do", f"{self.help.command}   {self.help.effect}"

    @property
    def lacks_messages(self) -> bool:
        """Whether messages are lost, or in the log and in no queue."""
        return self.state == DAMAGED or self.unlisted > 0

    def sentence(self) -> str:
        """The state, and what is lost."""
        said, lost = [], self.lost
        if lost.messages:
            which = f"{counted(lost.messages, 'message')} of {counted(lost.queues, 'queue')}"
            said.append(f"{'' if lost.are_all else 'at least '}{which} lost{_when(lost)}")
        elif lost.bytes:
            said.append(f"{counted(lost.bytes, 'byte')} of the log lost{_when(lost)}")
        if self.unlisted:
            said.append(f"{counted(self.unlisted, 'message')} in the log that no consumer gets")
        if self.moved:
            said.append(f"{counted(self.moved, 'message')} at another queue offset than their own")
        if not said and self.state == FLAWED:
            said.append("no message is known to be lost")
        return self.state if not said else f"{self.state}: {'; '.join(said)}"

    def _broker(self) -> str:
        if self.starts is None:
            return (
                "not known: a process writes to the store or has it open, it is not on this host, or it has "
                "queues in RocksDB, those of another storeType, a log in DLedger mode, or batch queues "
                "and no config/"
            )
        if self.refusals:
            first, more = self.refusals[0], len(self.refusals) - 1
            others = f" (and {counted(more, 'more file')})" if more else ""
            return f"does not start: {first.path}: {first.reason}{others}"
        takes = f", and takes {counted(self.cuts, 'message')} from the queues" if self.cuts else ""
        stops = (
            "; consumers may stop at what is missing, or skip more" if self.stops_consumers else ""
        )
        return f"starts{takes}{stops}"


def _when(lost: LostMessages) -> str:
    if lost.after_ms is None and lost.before_ms is None:
        return ""
    after = "the start" if lost.after_ms is None else shown_time(lost.after_ms)
    before = "the end" if lost.before_ms is None else shown_time(lost.before_ms)
    return f", stored between {after} and {before}"


def verdict_of(
    store: StoreReader,
    findings: Sequence[Finding],
    damage: Sequence[tuple[int, int]],
    lost: Counter[QueueId],
    records: int,
    start: BrokerStart | None,
) -> Verdict:
    """The verdict, by what `verify` found: findings, damaged ranges of the log, the messages that queues list
    there, the number of intact records, and what a broker would do."""
    wrong: Counter[str] = Counter()
    for finding in findings:
        if finding.severity is not Severity.NOTE:
            wrong[finding.code] += finding.count
    end, lost, after = store.log_range()[1], +lost, _messages_after_log(store)
    ranges = list(damage)
    if wrong.keys() & {*LOST_END}:
        ranges.append((end, end))
        lost += after
    refusals = () if start is None else start.refusals
    state = DAMAGED if ranges or lost else FLAWED if wrong or refusals else SOUND
    cuts = messages_cut(store.snapshot(), start)
    lost_bytes = sum(stop - start for start, stop in damage)
    are_all = all(stop <= store.snapshot().last_listed for _, stop in damage)
    times = _times_around(store, ranges)
    return Verdict(
        state,
        LostMessages(lost.total(), len(lost), *times, lost_bytes, are_all),
        sum(wrong[code] for code in _UNLISTED),
        sum(wrong[code] for code in _MOVED),
        None if start is None else not refusals,
        refusals,
        cuts + (after.total() if start is not None and start.plan is not None else 0),
        bool(wrong.keys() & {*_STOPPING}) or (_DANGLING in wrong and (bool(damage) or not ranges)),
        _help(store, start, wrong, records, cuts, after.total(), has_lost=bool(lost)),
    )


def _messages_after_log(store: StoreReader) -> Counter[QueueId]:
    """How many messages each queue of a store that was not closed lists after the log's end."""
    messages: Counter[QueueId] = Counter()
    for queue, units in store.opening.after_log.items():
        first = store.view.state(queue).file_stop
        messages[queue] = int(store.view.files(queue).entries(first, first + units).count.sum())
    return messages


def _times_around(
    store: StoreReader, damage: Sequence[tuple[int, int]]
) -> tuple[int | None, int | None]:
    """The store times (ms) of the record before the first damage and of that after the last."""
    if not damage:
        return None, None
    first, last = min(start for start, _ in damage), max(stop for _, stop in damage)
    before = None
    for file in reversed([file for file in store.log.chain.segments if file.base < first]):
        for headers in sound_headers(store.log, file.base, first, check_crc=False):
            before = int(headers.store_timestamp[-1])
        if before is not None:
            break
    after = next(sound_headers(store.log, last, store.log_range()[1], check_crc=False), None)
    return before, None if after is None else int(after.store_timestamp[0])


def broker_start_on(store: StoreReader) -> BrokerStart | None:
    """What a broker would do; None where that was not tried, or changes."""
    if not store.log.chain.cost.grows or is_of_other_store_type(store):
        return None
    try:
        start = broker_start(store.path, store.config)
        refused = {os.path.basename(file.path) for file in start.refusals}
        # Which topics the broker will have is not known here.
        return None if refused == {TOPICS_FILE} and was_without_config(store) else start
    except (StoreLockedError, UnsupportedStoreError):
        return None
    except StoreError as error:
        why = RefusedFile(OTHER, str(error.path or store.path), error.reason, error.advice or "")
        return BrokerStart((why,), None)


def messages_cut(snapshot: StoreSnapshot, start: BrokerStart | None) -> int:
    """How many messages a broker's start takes from the queues as readers see them."""
    cut = 0
    if start is None or start.plan is None:
        return cut
    for queue, state in snapshot.queues.items():
        low, high = start.plan.queues.get(queue, (0, 0))
        kept = max(0, min(high, state.max_offset) - max(low, state.min_offset))
        # A broker gives the queue offsets of lost messages to the messages after them.
        lost = int(state.lost_from_tail.count.sum())
        messages = state.max_offset - state.min_offset - lost
        cut += max(0, messages - kept)
    return cut


def _help(
    store: StoreReader,
    start: BrokerStart | None,
    wrong: Counter[str],
    records: int,
    cuts: int,
    after_log: int,
    *,
    has_lost: bool,
) -> NextStep | None:
    """What helps most: first what lets a broker start, then what keeps most. A rebuild, as a broker, lists
    what follows a lost message at queue offsets that are too low."""
    refusals = () if start is None else start.refusals
    for refusal in refusals:
        if refusal.remedy:
            return NextStep(refusal.path, spoken(refusal.remedy))
    keeps = f"keeps the messages of {counted(records, 'record')}, in a new store"
    salvage = NextStep(_command(store, "salvage", "--to NEW"), keeps)
    if any(refusal.kind == LOG_FILE for refusal in refusals):
        return _recovery(store, records) or salvage
    plan = None if start is None else start.plan
    rebuild = _command(store, "rebuild", "--to NEW")
    every = f"all {counted(records, 'message')} of the log, in a new store"
    if wrong.keys() & {*_IN_LOG} or (plan is not None and plan.records_cut):
        return salvage
    if wrong.keys() & {*LOST_END}:
        where = "look for the end of the log in a replica or a copy"
        return NextStep(where, "without it a broker starts, and what was there is lost")
    if has_lost:
        return salvage
    if any(refusal.kind == QUEUE_FILE for refusal in refusals) or wrong.keys() & {*_IN_QUEUES}:
        return NextStep(rebuild, f"lists {every}")
    if plan is not None and (cuts or plan.empty_entries):
        return _recovery(store, records)
    if any(code.startswith("index-") for code in wrong):
        return NextStep(rebuild, f"indexes {every}")
    if plan is not None and not plan.clean:
        taken = f"{counted(after_log, 'message')} that the log lacks" if after_log else "no message"
        return NextStep(
            "start the broker", f"it recovers the store, and takes {taken} from its queues"
        )
    return None


def _command(store: StoreReader, name: str, options: str) -> str:
    return f"{spoken('rmqstore')} {name} {shlex.quote(shown_path(str(store.path)))} {options}"


def _recovery(store: StoreReader, records: int) -> NextStep | None:
    """The recovery in place, if it gives each file of the log its size and cuts no intact record."""
    try:
        plan = plan_recovery(store.path, store.config)
    except StoreError:
        return None
    if plan.untouched or plan.records_cut:
        return None
    effect = f"keeps {counted(records, 'message')}, cuts {counted(plan.bytes_cut, 'byte')}"
    if plan.entries_after_log:
        effect += ", and entries that point past the log's end: look for it in a replica first"
    return NextStep(_command(store, "recover", "--apply"), effect)
