"""Replay selected messages of a store into another store, into Parquet, or to a running broker."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rmq_store.cli import options
from rmq_store.cli.options import (
    DeclaredOption,
    OptionOfHelpAll,
    flag,
    option,
    rare_flag,
    rare_option,
)
from rmq_store.errors import CorruptQueueError, DataLossError
from rmq_store.format.releases import dialect
from rmq_store.scan.parse_options import parse_options
from rmq_store.scan.scan import pinned_scan
from rmq_store.search.selection import require_topic
from rmqstore_jobs.replay_targets.dry_run import DryRun
from rmqstore_jobs.replay_targets.local_targets import LocalReplay
from rmqstore_jobs.replay_targets.replay_call import ReplayReport
from rmqstore_jobs.replay_targets.to_broker import LiveReplay, require_client
from rmqstore_jobs.replaying.plan import ReplayJournal
from rmqstore_jobs.replaying.replay_question import source_options
from rmqstore_jobs.replaying.replay_spec import (
    DEFAULT_PATIENCE,
    ReplaySpec,
    check_spec,
    with_fixed_times,
)
from rmqstore_jobs.running.job_command import OF_THE_RUN, Job, size
from rmqstore_jobs.running.source_options import (
    QUEUE_OPTIONS,
    is_queue_id,
    offsets_of,
    queues_of,
    refused,
)
from rmqstore_jobs.running.spark_engine import Session, ShouldStop


def run(spark: Session, spec: ReplaySpec, should_stop: ShouldStop = lambda: False) -> ReplayReport:
    """Replay the selected messages. Returns the report.

    `should_stop` is called between waves. If it returns true, or if reading fails, the target is
    closed cleanly, the report has the reason, and a later run of the same spec continues. If
    writing fails, the report says so, and the next run is refused. Raises StoreError if the replay
    is refused; then nothing was written.
    """
    check_spec(spec)
    spec = with_fixed_times(spec)
    if spec.to_broker is not None:
        require_client()
    if spec.dry_run:
        return DryRun(spark, spec).report()
    kind = LocalReplay if spec.to_broker is None else LiveReplay
    with ReplayJournal(spec.journal_target) as journal:
        return kind(spark, spec, journal).run(should_stop)


def check_store(spec: ReplaySpec) -> None:
    """Raise StoreError for a store or a selection that cannot be read, and for a change of names that are not
    there.

    Offsets may have expired, or be lost: an interrupted replay then reads only what it has not replayed.
    """
    if spec.release is not None:
        dialect(spec.release)
    with suppress(DataLossError, CorruptQueueError):
        scan = pinned_scan(parse_options(source_options(with_fixed_times(spec))))
        changed = [*spec.topic_map, *(topic for topic, _ in spec.queue_map if topic is not None)]
        if changed:
            with scan.store.open() as store:
                for topic in changed:
                    require_topic(store, topic)


OPTIONS: Mapping[str, DeclaredOption] = {
    "to_store": option(
        "--to", metavar="DIR", help="Target store; created unless --append is given."
    ),
    "to_parquet": option("--to-parquet", metavar="DIR", help="A new folder of Parquet files."),
    "to_broker": option(
        "--to-broker", metavar="HOST:PORT", help="gRPC endpoint of a broker's proxy."
    ),
    "topics": options.TOPICS,
    **QUEUE_OPTIONS,
    "since": options.SINCE.but(type=None),
    "until": options.UNTIL.but(type=None),
    "tags": options.TAGS.but(callback=None),
    "keys": options.KEYS,
    "by_index": rare_flag(
        "--by-index", help="Find keys with the index, instead of reading the selection."
    ),
    "include_system_topics": options.SYSTEM.but(OptionOfHelpAll),
    "broker_name": options.BROKER_NAME.but(
        OptionOfHelpAll, help="The source's name in the origin properties."
    ),
    "broker_conf": options.BROKER_CONF.but(
        OptionOfHelpAll, help="The broker's configuration file of the source."
    ),
    "topic_map": rare_option("--map-topic", metavar="OLD=NEW", multiple=True, help="Repeatable."),
    "queue_map": rare_option(
        "--map-queue",
        metavar="[TOPIC:]OLD=NEW",
        multiple=True,
        help="Change a queue id, of one source topic or all; repeatable.",
    ),
    "keep_timestamps": rare_flag(
        "--keep-timestamps", help="Keep the store timestamps (default: now)."
    ),
    "append": flag("--append", help="The target store exists; add to it."),
    "target_conf": rare_option(
        "--target-conf",
        metavar="FILE",
        help="Configuration file of the target broker, for file sizes.",
    ),
    "release": options.RELEASE.but(OptionOfHelpAll),
    "failed": option(
        "--failed", metavar="DIR", help="Folder for refused messages and reasons, as Parquet."
    ),
    "fifo_topics": rare_option(
        "--fifo",
        metavar="TOPIC",
        multiple=True,
        help="A FIFO topic of the broker; the message group is the source queue; repeatable.",
    ),
    "rate": rare_option(
        "--rate", type=float, metavar="N", help="Send at most N messages per second."
    ),
    "patience": rare_option(
        "--patience",
        type=float,
        default=DEFAULT_PATIENCE,
        metavar="SECONDS",
        help="Seconds to retry a message.",
    ),
    "tls": rare_flag("--tls", help="Connect to the proxy with TLS."),
    "tls_ca": rare_option(
        "--tls-ca", metavar="FILE", help="Certificates, in PEM, that sign the proxy's own."
    ),
    "dry_run": flag("--dry-run", help="Only report what would be written, sent or refused."),
    "wave_bytes": rare_option(
        "--wave-bytes",
        type=size,
        metavar="SIZE",
        help="Bytes per wave (default: 64m, with many queues up to 256m; to a broker 8m).",
    ),
}


def spec_from_command_line(arguments: Mapping[str, Any]) -> ReplaySpec:
    """The spec from a command line. Raises InvalidArgumentError for what cannot be parsed."""
    queues, topics = queues_of(arguments["queues"], arguments["topics"])
    read = {
        "queues": queues,
        "topics": topics,
        "offsets": offsets_of(arguments["offsets"]),
        "topic_map": dict(_pair(text, "--map-topic OLD=NEW") for text in arguments["topic_map"]),
        "queue_map": dict(_queue_pair(text) for text in arguments["queue_map"]),
    }
    plain = {k: v for k, v in arguments.items() if k not in ("store", *OF_THE_RUN)}
    spec = ReplaySpec(source=arguments["store"], **{**plain, **read})
    check_spec(spec)
    return spec


def _pair(text: str, form: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not equals or not old or not new:
        raise refused(form, text)
    return old, new


def _queue_pair(text: str) -> tuple[tuple[str | None, int], int]:
    form = "--map-queue [TOPIC:]OLD=NEW"
    old, new = _pair(text, form)
    topic, _, number = old.rpartition(":")
    if not is_queue_id(number) or not is_queue_id(new):
        raise refused(form, text)
    return (topic or None, int(number)), int(new)


main = Job(
    "replay",
    """Replay selected messages of a store into another store, into Parquet, or to a broker.

    Examples:
        rmqstore replay /data/store --to /data/new --topic orders --since -1h
        # what would go to a running broker; without --dry-run it goes
        rmqstore replay /data/store --to-broker proxy:8081 --failed failed --dry-run
    """,
    run,
    spec_from_command_line,
    OPTIONS,
    validate=check_store,
)
