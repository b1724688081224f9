"""What to replay and where to: the spec of the replay job, and its command line."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from rmq_store.consumequeue import QueueId
from rmq_store.errors import InvalidArgumentError, nearest
from spark_source.options import parse_size, parse_time

DEFAULT_WAVE_BYTES = 256 << 20
DEFAULT_PATIENCE = 120.0
LIVE_WAVE_BYTES = 8 << 20
"""To a broker a wave takes seconds then: what is sent twice after a crash is at most one."""

QueueMap = Mapping[tuple[str | None, int], int]
"""(topic, or None for every topic; queue id) -> queue id of the target."""


@dataclass(frozen=True, slots=True)
class ReplaySpec:
    """What to replay, and where to. Times are milliseconds or ISO 8601 with a zone.

    Either `topics`, or single queues: `queues`, and `offsets` with a half-open range of queue
    offsets each; all user topics where neither is given. `wave_bytes` is about how much is held in
    memory at a time, twice. `dead_to_origin`: dead letters go to the topic they came from, as new
    messages of it.

    `to_broker`: the gRPC endpoint of a running broker's proxy, host:port. What it refuses goes to the
    folder `failed`, beside which the ledger stands. `fifo_topics` (names in the target) are sent with
    the source queue as message group. `rate`: messages a second; `patience`: seconds for which one
    message is tried again.
    """

    source: str
    to_store: str | None = None
    to_parquet: str | None = None
    topics: tuple[str, ...] = ()
    queues: tuple[QueueId, ...] = ()
    offsets: Mapping[QueueId, tuple[int, int]] = field(default_factory=dict)
    since: str | None = None
    until: str | None = None
    tags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    include_system_topics: bool = False
    broker_name: str | None = None
    broker_conf: str | None = None
    topic_map: Mapping[str, str] = field(default_factory=dict)
    queue_map: QueueMap = field(default_factory=dict)
    keep_timestamps: bool = False
    target_conf: str | None = None
    release: str | None = None
    append: bool = False
    restart: bool = False
    wave_bytes: int = DEFAULT_WAVE_BYTES
    dead_to_origin: bool = False
    to_broker: str | None = None
    failed: str | None = None
    fifo_topics: tuple[str, ...] = ()
    rate: float | None = None
    patience: float = DEFAULT_PATIENCE
    dry_run: bool = False
    checksums: bool = False

    def asked(self) -> dict[str, Any]:
        """What determines the rows that arrive, as plain JSON values."""
        passing = ("append", "restart", "wave_bytes", "offsets", "queue_map", *_MANNERS)
        plain = {name: value for name, value in asdict(self).items() if name not in passing}
        plain["offsets"] = [[*queue, *span] for queue, span in self.offsets.items()]
        plain["queue_map"] = [[*old, new] for old, new in self.queue_map.items()]
        for name in ("source", "to_store", "to_parquet", "failed"):
            if plain[name] is not None:
                plain[name] = str(Path(plain[name]).resolve())
        loaded: dict[str, Any] = json.loads(json.dumps(plain))
        return loaded


# How the same rows are sent, and not which.
_MANNERS = ("rate", "patience", "dry_run", "checksums")


def check(spec: ReplaySpec) -> None:
    """Raise InvalidArgumentError for a spec that cannot be, before any file is looked at."""
    if spec.to_broker is not None:
        _check_live(spec)
    elif spec.to_store is None and spec.to_parquet is None:
        raise InvalidArgumentError(
            None, reason="no target", advice="Give --to-store, --to-parquet or both, or --to-broker"
        )
    elif spec.failed or spec.fifo_topics or spec.rate or spec.dry_run:
        raise InvalidArgumentError(
            None, reason="--failed, --fifo, --rate and --dry-run are of a replay with --to-broker"
        )
    folders = (spec.source, spec.to_store, spec.to_parquet, spec.failed)
    paths = [Path(p).resolve() for p in folders if p]
    for i, path in enumerate(paths):
        if any(path == other or other in path.parents for other in paths[:i] + paths[i + 1 :]):
            raise InvalidArgumentError(
                path, reason="source and targets must be folders apart from each other"
            )
    for moment in (spec.since, spec.until):
        _checked_time(moment)
    if spec.topics and (spec.queues or spec.offsets):
        raise InvalidArgumentError(
            None,
            reason="topics and single queues exclude each other",
            advice="Name every queue, or only topics",
        )


def _check_live(spec: ReplaySpec) -> None:
    if spec.to_store is not None or spec.to_parquet is not None:
        raise InvalidArgumentError(None, reason="a broker is a target of its own: one replay each")
    if spec.queue_map:
        raise InvalidArgumentError(
            None,
            reason="queues cannot be mapped on the way to a running broker: its client chooses them",
            advice="Leave --map-queue out; the order of each source queue is kept with --fifo TOPIC",
        )
    if spec.failed is None:
        raise InvalidArgumentError(
            None,
            reason="no place for what the broker refuses",
            advice="Give --failed DIR; the ledger stands beside it",
        )
    if spec.append or spec.restart or spec.keep_timestamps or spec.target_conf or spec.release:
        raise InvalidArgumentError(
            None,
            reason="--append, --restart, --keep-timestamps, --target-conf and --release are of a "
            "replay into a store",
        )
    if spec.rate is not None and not spec.rate > 0:
        raise InvalidArgumentError(None, reason="--rate is messages a second", actual=spec.rate)


def _checked_time(value: str | None) -> int | None:
    try:
        return None if value is None else parse_time(value)
    except ValueError as error:
        raise InvalidArgumentError(None, reason=f"{value!r} {error}") from None


class _Parser(argparse.ArgumentParser):
    """Names the nearest known option where one is not known."""

    def error(self, message: str) -> NoReturn:
        unknown = re.search(r"unrecognized arguments: (--[\w-]+)", message)
        if unknown:
            known = [name for name in self._option_string_actions if name.startswith("--")]
            message = f"unknown option {unknown[1]}. {nearest(unknown[1], known)}"
        super().error(message)


def parser() -> argparse.ArgumentParser:
    """The command line of the replay job."""
    made = _Parser(
        prog="replay.py",
        allow_abbrev=False,
        description="Replay a selection of a broker's store into another store and into Parquet.",
        epilog="Exit codes: 0 all went well; 1 finished, but messages were refused by the target "
        "or are missing; 2 refused; 3 stopped early, the same command goes on or says why not.",
    )
    made.add_argument("source", help="folder of the store to read; not one byte of it is changed")
    to = made.add_argument_group("where to (one of the first two, or both)")
    to.add_argument("--to-store", metavar="DIR", help="a store; created unless --append is given")
    to.add_argument("--to-parquet", metavar="DIR", help="a new folder of Parquet files")
    to.add_argument("--append", action="store_true", help="the target store exists; add to it")
    to.add_argument(
        "--restart", action="store_true", help="delete what an unfinished replay left, begin anew"
    )
    to.add_argument(
        "--target-conf", metavar="FILE", help="broker.conf of the target: its file sizes"
    )
    to.add_argument("--release", help="write as this release of the broker does (default: newest)")
    to.add_argument(
        "--keep-timestamps", action="store_true", help="keep store timestamps (default: now)"
    )
    to.add_argument(
        "--map-topic", metavar="OLD=NEW", action="append", default=[], help="repeatable"
    )
    to.add_argument(
        "--map-queue",
        metavar="[TOPIC:]OLD=NEW",
        action="append",
        default=[],
        help="queue ids by the source's topic, or for every topic; repeatable",
    )
    live = made.add_argument_group("to a running broker")
    live.add_argument("--to-broker", metavar="HOST:PORT", help="gRPC endpoint of its proxy")
    live.add_argument("--failed", metavar="DIR", help="Parquet of what it refuses, with the reason")
    live.add_argument(
        "--fifo",
        metavar="TOPIC",
        action="append",
        default=[],
        help="a FIFO topic there: the source queue is the message group; repeatable",
    )
    live.add_argument("--rate", type=float, metavar="N", help="at most so many messages a second")
    live.add_argument(
        "--patience",
        type=float,
        default=DEFAULT_PATIENCE,
        metavar="SECONDS",
        help="try a message again for so long (120)",
    )
    live.add_argument("--dry-run", action="store_true", help="say what would be sent, and refused")
    what = made.add_argument_group("what (default: all messages of all user topics)")
    what.add_argument("--topic", action="append", default=[], help="repeatable")
    what.add_argument("--queue", metavar="TOPIC:ID", action="append", default=[], help="repeatable")
    what.add_argument(
        "--offsets",
        metavar="TOPIC:ID=FROM..BEFORE",
        action="append",
        default=[],
        help="queue offsets of one queue; -2 is its earliest, -1 its latest; repeatable",
    )
    what.add_argument(
        "--since", metavar="TIME", help="stored then or later; ms, or ISO with a zone"
    )
    what.add_argument("--until", metavar="TIME", help="stored before")
    what.add_argument("--tag", action="append", default=[], help="exactly this tag; repeatable")
    what.add_argument(
        "--key", action="append", default=[], help="a word of KEYS, or the UNIQ_KEY; repeatable"
    )
    what.add_argument("--include-system-topics", action="store_true")
    what.add_argument("--broker-name", help="the source's name in the origin properties")
    what.add_argument("--broker-conf", metavar="FILE", help="broker.conf of the source")
    how = made.add_argument_group("how")
    how.add_argument("--json", metavar="FILE", help="write the report there too; - is stdout")
    how.add_argument(
        "--checksums", action="store_true", help="size and SHA-256 of every file of the source"
    )
    how.add_argument("--master", help="Spark's master (default: spark-submit's, else local[*])")
    how.add_argument("--wave-bytes", help="do this much at a time (256m; to a broker 8m)")
    return made


def spec_of(given: argparse.Namespace) -> ReplaySpec:
    """The spec that a command line asks for; what cannot be read is an InvalidArgumentError."""
    spec = ReplaySpec(
        source=given.source,
        to_store=given.to_store,
        to_parquet=given.to_parquet,
        topics=tuple(given.topic),
        queues=tuple(_queue(text, "--queue") for text in given.queue),
        offsets=dict(_offsets(text) for text in given.offsets),
        since=given.since,
        until=given.until,
        tags=tuple(given.tag),
        keys=tuple(given.key),
        include_system_topics=given.include_system_topics,
        broker_name=given.broker_name,
        broker_conf=given.broker_conf,
        topic_map=dict(_pair(text, "--map-topic OLD=NEW") for text in given.map_topic),
        queue_map=dict(_queue_pair(text) for text in given.map_queue),
        keep_timestamps=given.keep_timestamps,
        target_conf=given.target_conf,
        release=given.release,
        append=given.append,
        restart=given.restart,
        wave_bytes=_wave_bytes(given),
        to_broker=given.to_broker,
        failed=given.failed,
        fifo_topics=tuple(given.fifo),
        rate=given.rate,
        patience=given.patience,
        dry_run=given.dry_run,
        checksums=given.checksums,
    )
    check(spec)
    return spec


def _refused(form: str, text: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        None, reason=f"cannot be read as {form}", actual=repr(text), advice="--help has the forms"
    )


def _queue(text: str, option: str) -> QueueId:
    topic, colon, number = text.rpartition(":")
    if not colon or not topic or not number.isascii() or not number.isdigit():
        raise _refused(f"{option} TOPIC:ID", text)
    return QueueId(topic, int(number))


def _offsets(text: str) -> tuple[QueueId, tuple[int, int]]:
    queue, equals, span = text.rpartition("=")
    match = re.fullmatch(r"(-?\d+)\.\.(-?\d+)", span, re.ASCII)
    if not equals or match is None:
        raise _refused("--offsets TOPIC:ID=FROM..BEFORE", text)
    return _queue(queue, "--offsets"), (int(match[1]), int(match[2]))


def _pair(text: str, form: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not equals or not old or not new:
        raise _refused(form, text)
    return old, new


def _queue_pair(text: str) -> tuple[tuple[str | None, int], int]:
    form = "--map-queue [TOPIC:]OLD=NEW"
    old, new = _pair(text, form)
    topic, _, number = old.rpartition(":")
    if not all(part.isascii() and part.isdigit() for part in (number, new)):
        raise _refused(form, text)
    return (topic or None, int(number)), int(new)


def _wave_bytes(given: argparse.Namespace) -> int:
    if given.wave_bytes is not None:
        return _size(given.wave_bytes)
    return DEFAULT_WAVE_BYTES if given.to_broker is None else LIVE_WAVE_BYTES


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise InvalidArgumentError(None, reason=f"--wave-bytes {error}", actual=text) from None
