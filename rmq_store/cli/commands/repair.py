"""rmqstore recover, rebuild, salvage: stores that a broker can start on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import click
from click.core import ParameterSource

from rmq_store.admin.rebuild import FILES, LOG_MODES, RebuildReport, bytes_to_rebuild
from rmq_store.admin.rebuild import rebuild as make
from rmq_store.admin.salvage import NAMES_NOTHING, SalvageReport, SkippedRange
from rmq_store.admin.salvage import salvage as save
from rmq_store.cli import options
from rmq_store.cli.command import command
from rmq_store.cli.commands.verify import print_findings
from rmq_store.cli.options import EngineArgs, StoreArgs, flag, option
from rmq_store.cli.output import OUTPUT, Output, note, problem
from rmq_store.config.broker_conf import STORE_TYPES
from rmq_store.consumequeue.queue_folders import line_of_lost_end
from rmq_store.errors import StoreError, printable
from rmq_store.reading.store_reader import StoreReader
from rmq_store.recovery import recover_store
from rmq_store.recovery.report import GIVE_THE_FILE, sentence_of_default_delays
from rmq_store.system_topics import open_state
from rmq_store.system_topics.delayed_messages import CANCELLED, DELIVERED
from rmq_store.text.progress import Progress
from rmq_store.text.sizes import counted, size

_WHAT_APPLY_DOES = "--apply repairs the store; then rmqstore verify says what it still lacks"


@command
def recover(
    store: str = options.STORE_PATH,
    method: str = option(
        "--method",
        type=click.Choice(["strict", "broker"]),
        default="strict",
        help="strict: keep as much as possible; broker: only show what DefaultMessageStore would do.",
    ),
    release: str | None = option(
        "--release", help="The broker release that will start on it (default: the newest)."
    ),
    really: bool = flag("--apply", help="Repair the store; without it the changes are only shown."),
    broker_conf: str | None = options.BROKER_CONF,
    out: Output = OUTPUT,
) -> bool:
    """Show how a recovery would repair a store that was not closed cleanly, or repair it in place.

    A recovery cuts the end of the log before the first record there that is not intact, and makes queues
    and index match. It keeps nothing of what it cuts: salvage can copy intact records behind it first.
    CHANGES THE STORE only with --apply. Fails while a broker has the store open.

    Examples:
        # what a recovery would change
        rmqstore recover /data/store
        rmqstore recover /data/store --apply
        # what a broker of this release would do
        rmqstore recover /data/store --method broker --release 5.3.3
    """
    if really and method == "broker":
        raise click.UsageError(
            "--method broker shows what a broker would do: to have it done, start the broker. --apply "
            "repairs the store with method strict, which keeps more"
        )
    with Progress("recover") as progress:
        how: dict[str, Any] = {"release": release, "progress": progress}
        if really:
            report = recover_store.recover(store, broker_conf, **how)
        else:
            report = recover_store.plan_recovery(store, broker_conf, method=method, **how)
    out.record(report.to_dict(), str(report).splitlines())
    if not out.as_json and not really and not report.untouched:
        next_step = "start the broker to have it done" if method == "broker" else _WHAT_APPLY_DOES
        note(f"nothing was changed; {next_step}")
    lost = report.entries_after_log or report.entries_left or report.lacking or report.left_out
    lacks = really and not report.untouched and _warned(store, broker_conf)
    return bool(report.damage or report.records_cut or lost or lacks)


def _warned(store: str, broker_conf: str | None) -> bool:
    """Warn of what the recovered store lacks. Returns whether messages are lost, or that is not known."""
    try:
        with StoreReader.open(store, broker_conf=broker_conf) as opened:
            options.warn_of(opened)
            return opened.opening.has_losses
    except (StoreError, OSError) as error:
        problem(f"warning: the store is repaired; what it still lacks is not known: {error}")
        return True


@command
def rebuild(
    store: str = options.STORE_PATH,
    to: str = options.TARGET,
    log: str = option(
        "--log",
        type=click.Choice(LOG_MODES),
        default="copy",
        help="Copy the log, or hard-link its full files, on one file system.",
    ),
    store_type: str = option(
        "--store-type",
        type=click.Choice(STORE_TYPES),
        default=FILES,
        help="storeType of the broker that will start on it: queues in files or in RocksDB.",
    ),
    verify: bool = flag("--verify", help="Verify the new store afterwards."),
    release: str | None = options.RELEASE,
    broker_conf: str | None = options.BROKER_CONF,
    on: EngineArgs = options.ENGINE_ARGS,
    out: Output = OUTPUT,
) -> bool:
    """Rebuild queues and index of STORE from its log, into the new store at --to.

    A broker can start on it. STORE is not changed. If interrupted, run the same command to
    continue. Exit code 1 if the log is damaged: the new store then has the intact messages. Also 1 if
    two records claim one queue offset: as in a broker, the queue lists the first (in RocksDB the last).
    And 1 if --verify finds a problem in the new store; --engine and --master say where it works.

    Examples:
        rmqstore rebuild /data/store --to /data/rebuilt --verify
        # for a large log on the same disk
        rmqstore rebuild /data/store --to /data/linked --log link
    """
    source_of = click.get_current_context().get_parameter_source
    if not verify and ParameterSource.COMMANDLINE in map(source_of, ("engine", "master")):
        raise click.UsageError("--engine and --master are for --verify")
    with StoreReader.open(store, broker_conf=broker_conf, queues=False) as opened:
        total = bytes_to_rebuild(opened)
    with Progress("rebuild", total) as progress:
        report = make(
            *(store, to),
            log=log,
            store_type=store_type,
            release=release,
            config=broker_conf,
            progress=progress,
        )
    out.record(report.to_dict(), _lines_of_rebuild(report))
    well = not verify or print_findings(StoreArgs(to), on, out).nothing_wrong
    return not (report.all_well and well)


def _lines_of_rebuild(report: RebuildReport) -> Iterator[str]:
    recovery = report.recovery
    yield (
        f"{report.target}: {counted(recovery.records, 'record')}, "
        f"{counted(len(recovery.queues), 'queue')}, {counted(recovery.entries_rebuilt, 'entry')} and "
        f"{counted(recovery.index_items_rebuilt, 'index item')} rebuilt"
        + (", continuing an earlier run" if report.resumed else "")
    )
    for start, stop in recovery.damage:
        yield f"damaged: log offsets {start} to {stop}; a broker cannot send messages from there"
    if report.renumbered:
        counts = (f"{count} of {topic}" for topic, count in sorted(report.renumbered.items()))
        yield (
            "messages whose queue offset is another one than the broker's state names: "
            f"{', '.join(counts)}. The broker may ask for transactions that have ended and forget open ones, "
            "skip delayed messages or deliver them again; rmqstore salvage gives that state the new numbers"
        )
    if report.left_behind:
        yield (
            f"left out: {', '.join(report.left_behind)}. The broker's timer reads all its messages again: "
            "those that wait come in time, those that were delivered or recalled come too"
        )
    if report.kind_unknown:
        yield (
            "neither topics.json nor a folder says whether these topics have batch queues; they got "
            f"plain ones: {', '.join(map(printable, report.kind_unknown))}"
        )
    if report.unserved:
        yield (
            "in RocksDB an inner batch has one entry, and a broker serves its first message alone: a "
            f"consumer stays there. Topics with such: {', '.join(map(printable, report.unserved))}"
        )
    if report.default_delays:
        yield sentence_of_default_delays(report.default_delays, again=GIVE_THE_FILE)
    if recovery.default_sizes:
        yield recovery.line_of_default_sizes()
    yield from recovery.lines_of_records_cut()
    if recovery.entries_after_log:
        yield line_of_lost_end(recovery.entries_after_log, report.source_end)
    yield from recovery.lines_of_left_out()
    yield from recovery.lines_of_earlier_lives()


_ENDED = {
    DELIVERED: "delayed or timer messages that were delivered",
    CANCELLED: "timer messages that were cancelled",
    open_state.PUT_OFF: "timer messages that were put off, and stored again",
    open_state.STORED_AGAIN: "half messages that were stored again",
    NAMES_NOTHING: "op messages of transactions that are not in the log",
    open_state.POP_STATE: "check points and acknowledgements of pop",
}


@command
def salvage(
    store: str = options.STORE_PATH,
    to: str = options.TARGET,
    raw: bool = flag(
        "--raw",
        help="Copy every record as it is, as evidence. No broker should start on the new store.",
    ),
    release: str | None = options.RELEASE,
    broker_conf: str | None = options.BROKER_CONF,
    out: Output = OUTPUT,
) -> bool:
    """Copy the intact messages of STORE's log into a new store at --to.

    A broker can start on it. Queues and index are rebuilt; those of STORE are not needed. Messages get
    new queue offsets, and so do the offsets of consumer groups and what is open of transactions and
    delayed messages. Every range of the log that is left out is reported with its reason. Exit code 1
    if anything was left out, or if the store goes on in a DLedger log, which is not here.

    Examples:
        rmqstore salvage /data/store --to /data/salvaged
    """
    with StoreReader.open(store, broker_conf=broker_conf, queues=False) as opened:
        total = (opened.log.chain.stop - opened.log.chain.start) * (1 if raw else 2)
    with Progress("salvage", total) as progress:
        report = save(store, to, config=broker_conf, release=release, raw=raw, progress=progress)
    out.record(report.to_dict(), _lines_of_salvage(report, to))
    left_out = report.skipped_ranges or report.entries_after_log
    return bool(left_out or report.config_unread) or report.unread is not None


def _lines_of_salvage(report: SalvageReport, target: str) -> Iterator[str]:
    yield f"{counted(report.messages, 'message')}, {size(report.record_bytes)}, copied to {target}"
    yield from report.misnamed
    yield from _left_out(report.skipped)
    ended = f"{report.ended_bytes} of state that has ended, " if report.ended_bytes else ""
    yield (
        f"{report.log_stop - report.log_start} bytes of log: {report.record_bytes} of records, {ended}"
        f"{report.skipped_bytes} left out, {report.no_loss_bytes} filler or unwritten"
    )
    yield from _state(report)
    if report.created_again:
        yield (
            f"messages of an earlier topic of the same name, which was deleted, come first in: "
            f"{', '.join(map(printable, report.created_again))}. rmqstore rebuild does not list them"
        )
    for topic, messages in report.undeclared.items():
        yield (
            f"topic {printable(topic)}, which topics.json does not have, as if it was deleted, is in the new "
            f"store, with {counted(messages, 'message')}"
        )
    if report.entries_after_log:
        yield line_of_lost_end(report.entries_after_log, report.log_end)
    if report.default_delays:
        yield sentence_of_default_delays(report.default_delays, again=GIVE_THE_FILE)
    if report.unread is not None:
        yield f"not read: {report.unread}"


def _state(report: SalvageReport) -> Iterator[str]:
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
    for sentence in report.config_unread:
        yield f"not carried over: {sentence}"


def _left_out(ranges: Iterable[SkippedRange]) -> Iterator[str]:
    """A line for each range that is left out, and one for some of a kind that follow each other."""
    for (kind, reason), group in groupby(ranges, lambda range_: (range_.kind, range_.reason)):
        parts: list[list[SkippedRange]] = []
        for range_ in group:
            if not parts or parts[-1][-1].stop != range_.start:
                parts.append([])
            parts[-1].append(range_)
        for some in parts:
            count = f", {len(some)} times" if len(some) > 1 else ""
            why = f": {reason}" if reason else ""
            yield f"left out: {some[0].start} to {some[-1].stop}: {kind}{why}{count}"
