"""The spec of the replay job: selection, target and manner."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import Any

from rmq_store.arrow.encoding.checks import topic_fault
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import InvalidArgumentError
from rmq_store.files.journal import refuse_uri
from rmq_store.files.remote.uri_filesystem import real_path
from rmq_store.format.queues import QueueId
from rmq_store.format.releases import dialect
from rmq_store.reading.store_reader import StoreReader
from rmq_store.search.log_partitions import newest_time
from rmq_store.system_topics.open_state import kind_of_broker_record
from rmq_store.text import times
from rmq_store.text.times import RelativeTime, Time
from rmqstore_jobs.running.failures import refuse_if
from rmqstore_jobs.running.source_options import refuse_reversed_offsets, refuse_topics_beside

DEFAULT_PATIENCE = 120.0
QueueMap = Mapping[tuple[str | None, int], int]  # (topic or None for all, queue id) -> new id


@dataclass(frozen=True, slots=True)
class ReplaySpec:
    """What to replay, and the target. Times have the forms of `rmq_store.text.times`.

    Either `topics`, or single queues: `queues`, and `offsets` with a half-open range of queue
    offsets per queue; by default all user topics. The job holds about twice `wave_bytes` in memory;
    by default the waves have the size that suits the target.
    `dead_to_origin`: dead letters go to their origin topic as new messages.

    `to_broker`: the gRPC endpoint of a running broker's proxy, host:port. Messages that it refuses go to the
    folder `failed`, and the journal is beside that folder. Messages of `fifo_topics` (names in the target)
    have the source queue as message group. `rate`: messages per second. `patience`: seconds to retry one
    message. `tls_ca`: a file with the certificates that sign the proxy's. `dry_run`: write and send nothing;
    the report says what would be written or sent.
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
    by_index: bool = False  # find keys with the index instead of reading the whole selection
    include_system_topics: bool = False
    broker_name: str | None = None
    broker_conf: str | None = None
    topic_map: Mapping[str, str] = field(default_factory=dict)
    queue_map: QueueMap = field(default_factory=dict)
    keep_timestamps: bool = False
    target_conf: str | None = None
    release: str | None = None
    append: bool = False
    wave_bytes: int | None = None
    dead_to_origin: bool = False
    to_broker: str | None = None
    failed: str | None = None
    fifo_topics: tuple[str, ...] = ()
    rate: float | None = None
    patience: float = DEFAULT_PATIENCE
    tls: bool = False
    tls_ca: str | None = None
    dry_run: bool = False
    checksums: bool = False

    @property
    def journal_target(self) -> str:
        """The target that the journal is beside."""
        return self.failed or self.to_store or self.to_parquet or ""

    def asked(self) -> dict[str, Any]:
        """The fields that determine which rows arrive, as plain JSON values."""
        passing = ("append", "wave_bytes", "offsets", "queue_map", *_MANNERS)
        plain = {name: value for name, value in asdict(self).items() if name not in passing}
        plain["offsets"] = [[*queue, *span] for queue, span in self.offsets.items()]
        plain["queue_map"] = [[*old, new] for old, new in self.queue_map.items()]
        for name in ("source", "to_store", "to_parquet", "failed"):
            if plain[name] is not None:
                plain[name] = real_path(plain[name])
        return dict(json.loads(json.dumps(plain)))


# Fields that decide how rows are found and sent, but not which rows.
_MANNERS = ("rate", "patience", "tls", "tls_ca", "dry_run", "checksums", "by_index")


def takes_members(request: Mapping[str, Any]) -> bool:
    """Whether a replay takes each message of an inner batch by itself, by its `request`. A store gets the
    record as it is, unless Parquet gets the same messages, or tags, keys or offsets choose among them."""
    return request.get("to_store") is None or any(
        request.get(name) for name in ("to_parquet", "tags", "keys", "offsets")
    )


def check_spec(spec: ReplaySpec) -> None:
    """Raise InvalidArgumentError for an invalid spec, before any file is read."""
    _check_target(spec)
    refuse_if(spec.tls_ca is not None and not spec.tls, "--tls-ca needs --tls", "Give --tls too")
    patient = 0 <= spec.patience < math.inf
    forms = "--patience must be a number of seconds, 0 or more"
    refuse_if(not patient, forms, found=spec.patience)
    targets = (spec.to_store, spec.to_parquet, spec.failed)
    for target in targets:
        refuse_uri(target or "")
    paths = [Path(path).resolve() for path in (spec.source, *targets) if path]
    for path, other in permutations(paths, 2):
        if path == other or other in path.parents:
            raise InvalidArgumentError(path, reason="source and targets must be separate folders")
    _check_selection(spec)
    for new in spec.topic_map.values():
        fault = topic_fault(new, dialect(spec.release), StoreConfig()) if spec.to_store else None
        refuse_if(fault is not None, f"--map-topic: {fault}")
        is_of_broker = kind_of_broker_record(new) is not None
        refuse_if(is_of_broker, f"--map-topic: {new} has records of the broker, and no messages")


def _check_target(spec: ReplaySpec) -> None:
    to_folder = spec.to_store is not None or spec.to_parquet is not None
    if spec.to_broker is None:
        refuse_if(not to_folder, "no target", "Give --to, --to-parquet or both, or --to-broker")
        of_broker = spec.failed or spec.fifo_topics or spec.rate or spec.tls
        refuse_if(of_broker, "--failed, --fifo, --rate and --tls need --to-broker")
        return
    is_uri = "/" in spec.to_broker
    refuse_if(is_uri, "--to-broker is HOST:PORT, and no URI", found=spec.to_broker)
    refuse_if(to_folder, "a replay to a broker cannot have another target: run two replays")
    refuse_if(
        spec.queue_map,
        "a replay to a broker cannot map queues: the client chooses them",
        "Leave out --map-queue; --fifo TOPIC keeps the order of each source queue",
    )
    refuse_if(
        spec.failed is None,
        "no folder for messages that the broker refuses",
        "Give --failed DIR; the journal is beside it",
    )
    of_store = spec.append or spec.keep_timestamps or spec.target_conf or spec.release
    refuse_if(of_store, "--append, --keep-timestamps, --target-conf and --release need --to")
    refuse_if(
        spec.rate is not None and not 0 < spec.rate < math.inf,
        "--rate must be a number of messages per second above 0",
        found=spec.rate,
    )


def _check_selection(spec: ReplaySpec) -> None:
    for moment in (spec.since, spec.until):
        _checked_time(moment)
    for key in spec.keys:
        refuse_if(
            not key.strip() or (spec.by_index and "||" in key),  # the source separates keys by it
            "--key is a word of KEYS, all of KEYS, or a UNIQ_KEY",
            "Give --key once for each of them",
            found=repr(key),
        )
    refuse_if(spec.by_index and not spec.keys, "--by-index needs --key", "Give --key")
    refuse_reversed_offsets(spec.offsets)
    refuse_topics_beside(spec.topics, (*spec.queues, *spec.offsets))


def _checked_time(value: str | None) -> Time | None:
    try:
        return None if value is None else times.parse_time(value)
    except times.NotATimeError as error:
        raise InvalidArgumentError(reason=f"{value!r} {error}") from None


def with_fixed_times(spec: ReplaySpec) -> ReplaySpec:
    """The spec with relative times as milliseconds, fixed by the newest message of the source.

    So the journal has the times that the replay used. Raises InvalidArgumentError as `fixed_range`.
    """
    since, until = _checked_time(spec.since), _checked_time(spec.until)
    if not isinstance(since, RelativeTime) and not isinstance(until, RelativeTime):
        times.fixed_range(since, until)
        return spec
    with StoreReader.open(
        spec.source, broker_name=spec.broker_name, broker_conf=spec.broker_conf
    ) as source:
        fixed = times.fixed_range(since, until, lambda: newest_time([source]))
    return replace(
        spec,
        since=str(fixed[0]) if isinstance(since, RelativeTime) else spec.since,
        until=str(fixed[1]) if isinstance(until, RelativeTime) else spec.until,
    )


def times_of(spec: ReplaySpec) -> tuple[int | None, int | None]:
    """`since` and `until` in ms. Raises InvalidArgumentError for a time that is not fixed yet."""
    moments = (_checked_time(spec.since), _checked_time(spec.until))
    since, until = (times.fixed_time(time, lambda: None) for time in moments)
    return since, until
