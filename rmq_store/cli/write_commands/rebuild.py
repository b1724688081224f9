"""rmqstore rebuild."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.core import ParameterSource

from rmq_store.admin.rebuild import FILES, LOG_MODES, STORE_TYPES, RebuildReport, work_of
from rmq_store.admin.rebuild import rebuild as make
from rmq_store.cli.command import command
from rmq_store.cli.engines import ENGINE_ARGS, EngineArgs
from rmq_store.cli.options import BROKER_CONF, RELEASE, STORE_PATH, TARGET, StoreArgs, flag, option
from rmq_store.cli.output import OUTPUT, Output
from rmq_store.cli.read_commands.verify import print_findings
from rmq_store.consumequeue.entries_after_log import line_of_lost_end
from rmq_store.escaping import printable
from rmq_store.recovery.report import GIVE_THE_FILE, line_of_default_delays
from rmq_store.text.progress import Progress
from rmq_store.text.sizes import counted


@command
def rebuild(
    store: str = STORE_PATH,
    to: str = TARGET,
    log: str = option(
        "--log",
        type=click.Choice(LOG_MODES),
        default="copy",
        show_default=True,
        help="Copy the log, or hard-link its full files and copy the last; links need one file system.",
    ),
    store_type: str = option(
        "--store-type",
        type=click.Choice(STORE_TYPES),
        default=FILES,
        show_default=True,
        help="storeType of the broker that will start on it: queues in files, or in a RocksDB database.",
    ),
    verify: bool = flag("--verify", help="Verify the new store afterwards."),
    release: str | None = RELEASE,
    broker_conf: str | None = BROKER_CONF,
    on: EngineArgs = ENGINE_ARGS,
    out: Output = OUTPUT,
) -> bool:
    """Rebuild queues and index of STORE from its log, into the new store at --to.

    A broker can start on it. STORE is not changed. If interrupted, run the same command to
    continue. Exit code 1 if the log is damaged: the new store then has the intact messages. Also 1 if
    two records claim one queue offset: as in a broker, the queue lists the first (in RocksDB the last).
    And 1 if --verify finds a problem in the new store; --engine and --master say where it works.
    """
    from rmq_store.store import MessageStore

    source_of = click.get_current_context().get_parameter_source
    if not verify and ParameterSource.COMMANDLINE in map(source_of, ("engine", "master")):
        raise click.UsageError("--engine and --master are for --verify")
    with MessageStore.open(store, broker_conf=broker_conf, queues=False) as opened:
        total = work_of(opened)
    with Progress("rebuild", total) as progress:
        report = make(
            *(store, to),
            log=log,
            store_type=store_type,
            release=release,
            config=broker_conf,
            progress=progress,
        )
    out.record(report.to_dict(), _lines(report))
    well = not verify or print_findings(StoreArgs(to), on, out).nothing_wrong
    return not (report.all_well and well)


def _lines(report: RebuildReport) -> Iterator[str]:
    """What was rebuilt, and what a broker that starts on it will miss or do again."""
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
            "those that wait come in time, those that were delivered come a second time"
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
        yield line_of_default_delays(report.default_delays, again=GIVE_THE_FILE)
    yield from recovery.lines_of_intact_cut()
    if recovery.entries_after_log:
        yield line_of_lost_end(recovery.entries_after_log, report.source_end)
    yield from recovery.lines_of_left_out()
    yield from recovery.lines_of_earlier_lives()
