"""The command line of the replay job: its options, and the spec made from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmq_store.cli import options
from rmq_store.cli.options import Declared, RareOption, flag, option, rare_flag, rare_option
from rmqstore_jobs.replaying.replay_spec import DEFAULT_PATIENCE, ReplaySpec, check
from rmqstore_jobs.running.job_command import OF_THE_RUN, size
from rmqstore_jobs.running.source_options import (
    QUEUE_OPTIONS,
    is_queue_id,
    offsets_of,
    queues_of,
    refused,
)

OPTIONS: Mapping[str, Declared] = {
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
        "--by-index", help="Find keys with the index instead of reading the whole selection."
    ),
    "include_system_topics": options.SYSTEM.but(RareOption),
    "broker_name": options.BROKER_NAME.but(
        RareOption, help="The source's name in the origin properties."
    ),
    "broker_conf": options.BROKER_CONF.but(
        RareOption, help="The broker's configuration file of the source."
    ),
    "topic_map": rare_option("--map-topic", metavar="OLD=NEW", multiple=True, help="Repeatable."),
    "queue_map": rare_option(
        "--map-queue",
        metavar="[TOPIC:]OLD=NEW",
        multiple=True,
        help="Change a queue id, for one source topic or all topics; repeatable.",
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
    "release": options.RELEASE.but(RareOption),
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
    "dry_run": flag(
        "--dry-run",
        help="Report what would be written or sent, and what would be refused; write nothing.",
    ),
    "wave_bytes": rare_option(
        "--wave-bytes",
        type=size,
        help="Bytes per wave (default: 64m, with many queues up to 256m; to a broker 8m).",
    ),
}


def spec_of(given: Mapping[str, Any]) -> ReplaySpec:
    """The spec from a command line. Raises InvalidArgumentError for an option that cannot be
    parsed."""
    queues, topics = queues_of(given["queues"], given["topics"])
    read = {
        "queues": queues,
        "topics": topics,
        "offsets": offsets_of(given["offsets"]),
        "topic_map": dict(_pair(text, "--map-topic OLD=NEW") for text in given["topic_map"]),
        "queue_map": dict(_queue_pair(text) for text in given["queue_map"]),
    }
    plain = {k: v for k, v in given.items() if k not in ("store", *OF_THE_RUN)}
    spec = ReplaySpec(source=given["store"], **{**plain, **read})
    check(spec)
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
