"""The command line of the replay job: its options, and the spec made from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from rmq_store.cli import option_names
from rmqstore_jobs.replaying.replay_spec import DEFAULT_PATIENCE, ReplaySpec, check
from rmqstore_jobs.running.job_command import size
from rmqstore_jobs.running.queue_options import (
    is_queue_id,
    offsets_of,
    queue_options,
    queues_of,
    refused,
)
from rmqstore_jobs.running.source_options import rare_option

OPTIONS = (
    click.option(
        "--to", "to_store", metavar="DIR", help="Target store; created unless --append is given."
    ),
    click.option("--to-parquet", metavar="DIR", help="A new folder of Parquet files."),
    click.option("--to-broker", metavar="HOST:PORT", help="gRPC endpoint of a broker's proxy."),
    click.option("--topic", "topics", metavar="TOPIC", multiple=True, help=option_names.TOPICS),
    *queue_options,
    click.option("--since", metavar="TIME", help=option_names.SINCE),
    click.option("--until", metavar="TIME", help=option_names.UNTIL),
    click.option("--tag", "tags", metavar="TAG", multiple=True, help=option_names.TAG),
    click.option("--key", "keys", metavar="KEY", multiple=True, help=option_names.KEYS),
    rare_option(
        "--by-index",
        is_flag=True,
        help="Find keys with the index instead of reading the whole selection.",
    ),
    rare_option("--system", "include_system_topics", is_flag=True, help=option_names.SYSTEM),
    rare_option(
        "--broker-name", metavar="NAME", help="The source's name in the origin properties."
    ),
    rare_option(
        "--broker-conf", metavar="FILE", help="The broker's configuration file of the source."
    ),
    rare_option("--map-topic", "topic_map", metavar="OLD=NEW", multiple=True, help="Repeatable."),
    rare_option(
        "--map-queue",
        "queue_map",
        metavar="[TOPIC:]OLD=NEW",
        multiple=True,
        help="Change a queue id, for one source topic or all topics; repeatable.",
    ),
    rare_option(
        "--keep-timestamps", is_flag=True, help="Keep the store timestamps (default: now)."
    ),
    click.option("--append", is_flag=True, help="The target store exists; add to it."),
    rare_option(
        "--target-conf",
        metavar="FILE",
        help="Configuration file of the target broker, for file sizes.",
    ),
    rare_option("--release", metavar="RELEASE", help=option_names.RELEASE),
    click.option(
        "--failed", metavar="DIR", help="Folder for refused messages and reasons, as Parquet."
    ),
    rare_option(
        "--fifo",
        "fifo_topics",
        metavar="TOPIC",
        multiple=True,
        help="A FIFO topic of the broker; the message group is the source queue; repeatable.",
    ),
    rare_option("--rate", type=float, metavar="N", help="Send at most N messages per second."),
    rare_option(
        "--patience",
        type=float,
        default=DEFAULT_PATIENCE,
        show_default=True,
        metavar="SECONDS",
        help="Seconds to retry a message.",
    ),
    rare_option("--tls", is_flag=True, help="Connect to the proxy with TLS."),
    rare_option(
        "--tls-ca", metavar="FILE", help="Certificates, in PEM, that sign the proxy's own."
    ),
    click.option(
        "--dry-run",
        is_flag=True,
        help="Report what would be written or sent, and what would be refused; write nothing.",
    ),
    rare_option(
        "--wave-bytes",
        type=size,
        help="Bytes per wave (default: 64m, with many queues up to 256m; to a broker 8m).",
    ),
)


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
    plain = {
        k: v
        for k, v in given.items()
        if k not in ("store", "engine", "master", "as_json", "report", "verify")
    }
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
