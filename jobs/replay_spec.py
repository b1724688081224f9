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

QueueMap = Mapping[tuple[str | None, int], int]
"""(topic, or None for every topic; queue id) -> queue id of the target."""


@dataclass(frozen=True, slots=True)
class ReplaySpec:
    """What to replay, and where to. Times are milliseconds or ISO 8601 with a zone.

    Either `topics`, or single queues: `queues`, and `offsets` with a half-open range of queue
    offsets each; all user topics where neither is given. `wave_bytes` is about how much is held in
    memory at a time, twice. `dead_to_origin`: dead letters go to the topic they came from, as new
    messages of it.
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

    def asked(self) -> dict[str, Any]:
        """What determines the rows that arrive, as plain JSON values."""
        passing = ("append", "restart", "wave_bytes", "offsets", "queue_map")
        plain = {name: value for name, value in asdict(self).items() if name not in passing}
        plain["offsets"] = [[*queue, *span] for queue, span in self.offsets.items()]
        plain["queue_map"] = [[*old, new] for old, new in self.queue_map.items()]
        for name in ("source", "to_store", "to_parquet"):
            if plain[name] is not None:
                plain[name] = str(Path(plain[name]).resolve())
        loaded: dict[str, Any] = json.loads(json.dumps(plain))
        return loaded


def check(spec: ReplaySpec) -> None:
    """Raise InvalidArgumentError for a spec that cannot be, before any file is looked at."""
    if spec.to_store is None and spec.to_parquet is None:
        raise InvalidArgumentError(
            None, reason="no target", advice="Give --to-store, --to-parquet or both"
        )
    paths = [Path(p).resolve() for p in (spec.source, spec.to_store, spec.to_parquet) if p]
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
    how.add_argument("--master", help="Spark's master (default: spark-submit's, else local[*])")
    how.add_argument(
        "--wave-bytes", default=str(DEFAULT_WAVE_BYTES), help="read this much at a time (256m)"
    )
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
        wave_bytes=_size(given.wave_bytes),
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


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise InvalidArgumentError(None, reason=f"--wave-bytes {error}", actual=text) from None
