"""rmqstore salvage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from rmq_store.admin.moved_records import NAMES_NOTHING
from rmq_store.cli.command import command
from rmq_store.cli.options import BROKER_CONF, RELEASE, STORE_PATH, TARGET, flag
from rmq_store.cli.output import OUTPUT, Output
from rmq_store.consumequeue.entries_after_log import line_of_lost_end
from rmq_store.recovery.report import GIVE_THE_FILE, line_of_default_delays
from rmq_store.system_topics.open_state import (
    CANCELLED,
    DELIVERED,
    POP_STATE,
    PUT_OFF,
    STORED_AGAIN,
)
from rmq_store.text.progress import Progress
from rmq_store.text.sizes import counted, size

if TYPE_CHECKING:
    from rmq_store.admin.salvage import SalvageReport, Skipped

_ENDED = {
    DELIVERED: "delayed or timer messages that were delivered",
    CANCELLED: "timer messages that were cancelled",
    PUT_OFF: "timer messages that were put off, and stored again",
    STORED_AGAIN: "half messages that were stored again",
    NAMES_NOTHING: "op messages of transactions that are not in the log",
    POP_STATE: "check points and acknowledgements of pop",
}


@command
def salvage(
    store: str = STORE_PATH,
    to: str = TARGET,
    raw: bool = flag(
        "--raw",
        help="Copy every record as it is, as evidence. No broker should start on the new store.",
    ),
    release: str | None = RELEASE,
    broker_conf: str | None = BROKER_CONF,
    out: Output = OUTPUT,
) -> bool:
    """Copy the intact messages of STORE's log into a new store at --to.

    A broker can start on it. Queues and index are rebuilt; those of STORE are not needed. Messages get
    new queue offsets, and so do the offsets of consumer groups and what is open of transactions and
    delayed messages. Every range of the log that is left out is reported with its reason. Exit code 1
    if anything was left out, or if the store goes on in a DLedger log, which is not here.
    """
    from rmq_store.admin.salvage import salvage as save
    from rmq_store.store import MessageStore

    with MessageStore.open(store, broker_conf=broker_conf, queues=False) as opened:
        total = (opened.log.chain.stop - opened.log.chain.start) * (1 if raw else 2)
    with Progress("salvage", total) as progress:
        report = save(store, to, config=broker_conf, release=release, raw=raw, progress=progress)
    out.record(report.to_dict(), _lines(report, to))
    left_out = report.skipped_ranges or report.entries_after_log
    return bool(left_out or report.config_unread) or report.unread is not None


def _lines(report: SalvageReport, target: str) -> Iterator[str]:
    yield f"{counted(report.messages, 'message')}, {size(report.record_bytes)}, copied to {target}"
    yield from report.misnamed
    yield from _left_out(report.skipped)
    ended = f"{report.ended_bytes} of state that has ended, " if report.ended_bytes else ""
    yield (
        f"{report.log_stop - report.log_start} bytes of log: {report.record_bytes} of records, {ended}"
        f"{report.skipped_bytes} left out, {report.no_loss_bytes} filler or unwritten"
    )
    yield from _state(report)
    if report.entries_after_log:
        yield line_of_lost_end(report.entries_after_log, report.log_end)
    if report.default_delays:
        yield line_of_default_delays(report.default_delays, again=GIVE_THE_FILE)
    if report.unread is not None:
        yield f"not read: {report.unread}"


def _state(report: SalvageReport) -> Iterator[str]:
    """What became of the broker's own records, and of what names offsets."""
    if report.raw:
        yield (
            "every record was copied with the offsets that it names, which are others here: no broker should "
            "start on this store"
        )
        return
    ended = ", ".join(
        f"{count} {_ENDED[reason]}" for reason, count in sorted(report.ended.items()) if count
    )
    if ended:
        yield f"not copied, because a broker would do it again: {ended}"
    yield (
        f"open: {counted(report.open_transactions, 'transaction')}, "
        f"{counted(report.waiting, 'delayed or timer message')}; "
        f"{counted(report.group_offsets, 'offset')} of consumer groups carried over"
    )
    if report.without_copy:
        yield (
            f"{counted(report.without_copy, 'delayed message')} was delivered by the broker's files, and its "
            "copy is lost: not delivered again. --raw copies what the log has of it"
        )
    if report.not_acknowledged:
        yield (
            f"{counted(report.not_acknowledged, 'message')} popped and not acknowledged: with them groups "
            f"get {counted(report.given_again, 'message')} again"
        )
    for problem in report.config_unread:
        yield f"not carried over: {problem}"


def _left_out(ranges: Iterable[Skipped]) -> Iterator[str]:
    """A line for each range that is left out, and one for some of a kind that follow each other."""
    for (kind, reason), group in groupby(ranges, lambda one: (one.kind, one.reason)):
        parts: list[list[Skipped]] = []
        for one in group:
            if parts and parts[-1][-1].stop == one.start:
                parts[-1].append(one)
            else:
                parts.append([one])
        for some in parts:
            count = f", {len(some)} times" if len(some) > 1 else ""
            why = f": {reason}" if reason else ""
            yield f"left out: {some[0].start} to {some[-1].stop}: {kind}{why}{count}"
