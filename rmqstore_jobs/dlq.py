"""Report dead letters: messages, reasons, groups. Optionally send them again to their origin topics."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rmq_store.cli.options import GROUPS, TOP, TOPICS, WholeNumber, option
from rmq_store.questions.dead_letters import dead_letters, dead_ranges
from rmq_store.scan.parse_options import HidesSecrets
from rmq_store.scan.tasks import StoreScan
from rmq_store.text.progress import Progress
from rmqstore_jobs import replay
from rmqstore_jobs.replay import OPTIONS
from rmqstore_jobs.replaying.replay_spec import ReplaySpec, check_spec
from rmqstore_jobs.running.failures import refuse_if
from rmqstore_jobs.running.job_command import STORE_OPTIONS, Job, spec_from
from rmqstore_jobs.running.results import TablesResult, provenance_of
from rmqstore_jobs.running.source_options import scan_of, source_options
from rmqstore_jobs.running.spark_engine import Session, ShouldStop

DEFAULT_TOP = 100
_MOST_LISTED = 1_000_000  # rows that --top keeps in memory
# Options as those of a replay.
_OF_REPLAY = ("append", "dry_run", "release", "failed", "tls", "tls_ca")


@dataclass(frozen=True, slots=True)
class DlqSpec(HidesSecrets):
    """Which dead letters: those of `groups`, of `origin_topics` and with `keys` (default: all). `options`
    are the source's own.

    `resend`: the folder of a store that gets them in their origin topics. `to_broker`: the proxy of a
    running broker to send them to. All others: as for a replay.
    """

    store: str
    options: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    origin_topics: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    top: int = DEFAULT_TOP
    resend: str | None = None
    append: bool = False
    dry_run: bool = False
    release: str | None = None
    to_broker: str | None = None
    failed: str | None = None
    tls: bool = False
    tls_ca: str | None = None
    checksums: bool = False

    @property
    def resend_target(self) -> str | None:
        """The target to which they are sent again, if any."""
        return self.resend or self.to_broker


def run(spark: Session, spec: DlqSpec, should_stop: ShouldStop = lambda: False) -> TablesResult:
    """Report dead letters, and send them again if requested. Raises StoreError, also for a group without."""
    began = time.monotonic()
    scan = scan_of(spec.store, {**spec.options, "includeSystemTopics": "true"})
    with scan.store.open() as store, Progress("dlq", unit="messages") as progress:
        ranges = dead_ranges(store, spec.groups, scan.ranges)
        progress.expect(sum(map(len, ranges)))
        dead = dead_letters(store, ranges, spec.origin_topics, spec.top, progress, keys=spec.keys)
    resent, target = None, spec.resend_target
    if target is not None:
        resend = resend_spec(spec, scan)
        if resend.topics:  # a replay without topics takes those of users
            resent = replay.run(spark, resend, should_stop)
    numbers: dict[str, Any] = {
        "dead letters": sum(row["messages"] for row in dead.groups),
        "bytes": sum(row["bytes"] for row in dead.groups),
    }
    if target is not None:
        sent = {} if resent is None else resent.would_write if spec.dry_run else resent.written
        name = "would be sent again" if spec.dry_run else "sent again"
        numbers |= {name: sum((sent or {}).values()), "to": target}
    wanted = {"groups": spec.groups, "originTopics": spec.origin_topics, "keys": spec.keys}
    options = {**spec.options, **wanted, "resend": target}
    return TablesResult(
        job="dlq",
        ok=resent is None or resent.ok,
        tables={"of whom": dead.groups, "the newest": dead.newest},
        numbers=numbers,
        source=provenance_of(spark, scan, ranges, options, checksums=spec.checksums),
        seconds=round(time.monotonic() - began, 3),
        problems=() if resent is None else resent.problems,
        resumed=resent is not None and resent.resumed,
        stopped_by=None if resent is None else resent.stopped_by,
    )


def resend_spec(spec: DlqSpec, scan: StoreScan) -> ReplaySpec:
    """The spec of the replay that puts the dead letters of a scan into their origin topics; without topics if
    no group gave up a message."""
    refuse_if(
        spec.origin_topics,
        "dead letters can be sent again by group, not by origin topic",
        "Leave out --topic",
    )
    with scan.store.open() as store:
        dead = dead_ranges(store, spec.groups)
    since, until = scan.options.since, scan.options.until
    return ReplaySpec(
        source=spec.store,
        to_store=spec.resend,
        topics=tuple(sorted({slice_.queue.topic for slice_ in dead})),
        # As milliseconds, so that a relative time means the same moment in the report and here.
        since=None if since is None else str(since),
        until=None if until is None else str(until),
        broker_name=spec.options.get("brokerName"),
        broker_conf=spec.options.get("brokerConf"),
        dead_to_origin=True,
        **{name: getattr(spec, name) for name in ("keys", "to_broker", *_OF_REPLAY)},
    )


def check_store(spec: DlqSpec) -> None:
    """Raise StoreError for a store or group that is not there, and for a target that cannot be."""
    refuse_if(
        spec.resend_target is None and (spec.append or spec.dry_run),
        "--append and --dry-run are for dead letters that are sent again",
        "Give --to or --to-broker too",
    )
    scan = scan_of(spec.store, {**spec.options, "includeSystemTopics": "true"})
    with scan.store.open() as store:
        dead_ranges(store, spec.groups, scan.ranges)
    if spec.resend_target is not None:
        resend = resend_spec(spec, scan)
        check_spec(resend)
        if resend.topics:
            replay.check_store(resend)


_OF_SOURCE = (*STORE_OPTIONS, "startingTimestamp", "endingTimestamp")
_OPTIONS = {
    "groups": GROUPS,
    "origin_topics": TOPICS.but(help="Only dead letters from this topic; repeatable."),
    "keys": OPTIONS["keys"],
    "top": TOP.but(
        type=WholeNumber(1, _MOST_LISTED),
        default=DEFAULT_TOP,
        help="List the N newest dead letters.",
    ),
    "resend": option(
        "--to", metavar="DIR", help="Send them again: into this store, in their origin topics."
    ),
    "to_broker": option(
        "--to-broker",
        metavar="HOST:PORT",
        help="Send them again: to the proxy of a running broker.",
    ),
    **{name: OPTIONS[name] for name in _OF_REPLAY},
    **source_options(_OF_SOURCE),
}


main = Job(
    "dlq",
    """Report dead letters with reason, consumer group and origin topic; optionally send them again.

    Examples:
        rmqstore dlq /data/store --group g-retry --top 10
        # what would be sent to the origin topics again; without --dry-run it is
        rmqstore dlq /data/store --to-broker proxy:8081 --failed failed --dry-run
    """,
    run,
    lambda given: spec_from(DlqSpec, given, _OF_SOURCE),
    _OPTIONS,
    validate=check_store,
    engines=False,
)
