"""Dry run: report what a replay would do to any target, without writing or sending anything.

Executors read the whole selection and run the checks that need no target: those of a store's writer
(sizes, topic names, features of the release), and those of the broker's client.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.arrow.encoding.batch_to_records import LOOPBACK, prepare
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.locate import refuse_foreign_log
from rmq_store.files.journal import has_content
from rmq_store.format.queues import QueueSlice
from rmq_store.format.releases import dialect
from rmq_store.reading.store_reader import StoreReader
from rmq_store.system_topics.open_state import OpenState
from rmq_store.text.progress import Progress
from rmq_store.writing.store_writer import Refusal, refused_rows
from rmqstore_jobs.replay_targets.replay_call import (
    PlannedQueue,
    ReplayCall,
    ReplayReport,
    batch_to_append,
    most_common,
)
from rmqstore_jobs.replay_targets.to_broker import GrpcClient, RefusedMessage, rows_to_send
from rmqstore_jobs.replaying.plan import (
    ReplayJournal,
    ReplayRun,
    ranges_left,
    refuse_unasked_append,
    state_of_source,
)
from rmqstore_jobs.replaying.replay_question import (
    ENDED,
    ORIGIN_PREFIX,
    READ_TO_SEND,
    REFUSED_BY_BROKER,
    REFUSED_BY_STORE,
    Batches,
    columns_for_store,
    property_map,
)
from rmqstore_jobs.replaying.replay_spec import ReplaySpec, takes_members
from rmqstore_jobs.running.spark_engine import Session

_BY = {
    "origin": pa.string(),
    "originQueue": pa.int32(),
    "topic": pa.string(),
    "queueId": pa.int32(),
    "refusal": pa.string(),
}
_SUMS = {"messages": "sum", "bytes": "sum", "start": "min", "last": "max"}
_GROUPS = pa.schema(_BY | dict.fromkeys(_SUMS, pa.int64()))

Row = Mapping[str, Any]
Refusals = Callable[[pa.RecordBatch], Mapping[int, str]]  # row of a batch -> why it is refused


class DryRun(ReplayCall):
    """What a run with a spec would do now. Raises StoreError if the run would be refused."""

    def __init__(self, spark: Session, spec: ReplaySpec) -> None:
        super().__init__(spark, spec, ReplayJournal.read_only(spec.journal_target))
        self.refused_as = REFUSED_BY_STORE if spec.to_broker is None else REFUSED_BY_BROKER
        self.counts_all = not self.resumed

    def _new_run(self) -> ReplayRun:
        refuse_unasked_append(self.spec)
        if self.spec.to_store is not None and has_content(self.spec.to_store):
            refuse_foreign_log(Path(self.spec.to_store), StoreConfig.of(self.spec.target_conf))
        return super()._new_run()

    def report(self) -> ReplayReport:
        """The report of what would be written or sent."""
        spec, ranges = self.spec, list(self.read.ranges)
        left = ranges_left(self.read, self.current.next_log_offset) if self.resumed else ranges
        if spec.to_parquet is None or self.current.parquet_done:  # else it is written as a whole
            ranges = left
        groups, self.counts = self._looked_at(ranges)
        by_reason = _messages_by_reason(groups)
        messages, taken = by_reason.total(), by_reason.pop(None, 0)
        self.counts[ENDED] = by_reason.pop(ENDED, 0)
        self.counts[self.refused_as] = by_reason.total()
        if self.resumed and spec.to_store is not None and spec.to_parquet is not None:
            # The store continues where it was, while Parquet starts again.
            taken = _messages_by_reason(self._looked_at(left)[0])[None]
        # Parquet accepts messages that a store refuses.
        would = {spec.to_store: taken, spec.to_broker: taken, spec.to_parquet: messages}
        return replace(
            self._report(messages, {}, most_common(by_reason)),
            run_id="",
            planned=tuple(_queues(spec, groups)),
            would_write={target: n for target, n in would.items() if target is not None},
        )

    def _looked_at(self, ranges: list[QueueSlice]) -> tuple[list[Row], Counter[str]]:
        live = self.spec.to_broker is not None
        state = None if self.spec.to_store is None else state_of_source(self.read)
        columns = READ_TO_SEND if live else columns_for_store(self.spec)
        with Progress("replay") as progress:
            group = partial(_grouped_rows, self.spec, state)
            handled = self._handled(ranges, group, columns, progress=progress)
        return _grouped(handled.parts).to_pylist(), handled.counts


def _messages_by_reason(groups: Sequence[Row]) -> Counter[str | None]:
    """Of None: the messages that no target refuses."""
    messages: Counter[str | None] = Counter()
    for row in groups:
        messages[row["refusal"]] += row["messages"]
    return messages


def _grouped(parts: Sequence[pa.Table]) -> pa.Table:
    groups = pa.concat_tables([_GROUPS.empty_table(), *parts]).group_by(list(_BY))
    names = [*_BY, *(f"{name}_{function}" for name, function in _SUMS.items())]
    return groups.aggregate(list(_SUMS.items())).select(names).rename_columns(_GROUPS.names)


def _queues(spec: ReplaySpec, groups: list[Row]) -> Iterator[PlannedQueue]:
    """A row for each pair of source and target queue."""
    merged: dict[tuple[Any, ...], list[Row]] = {}
    for row in groups:
        to = None if spec.to_broker is not None else row["queueId"]
        merged.setdefault((row["origin"], row["originQueue"], row["topic"], to), []).append(row)
    for (origin, queue, topic, to), rows in sorted(merged.items(), key=lambda item: str(item[0])):
        yield PlannedQueue(
            topic=origin,
            queue_id=queue,
            start_offset=min(row["start"] for row in rows),
            stop_offset=max(row["last"] for row in rows) + 1,
            target_topic=topic,
            target_queue_id=to,
            messages=sum(row["messages"] for row in rows),
            bytes=sum(row["bytes"] for row in rows),
            refused=sum(row["messages"] for row in rows if row["refusal"] not in (None, ENDED)),
        )


def _grouped_rows(
    spec: ReplaySpec, state: OpenState | None, store: StoreReader, number: int, batches: Batches
) -> pa.Table:
    """Messages, bytes and offsets of a share by queues, and by why the target would leave them out."""
    body = "rawBody" if spec.to_broker is None else "body"
    refusals: Refusals | None = None
    if spec.to_broker is not None:
        refusals = _by_client(spec)
    elif spec.to_store is not None:
        refusals = _by_writer(spec, spec.to_store, state)
    return _grouped([_group(batch, body, refusals(batch) if refusals else {}) for batch in batches])


def _group(batch: pa.RecordBatch, body: str, refused: Mapping[int, str]) -> pa.Table:
    # The rules of the replay add the same few values to every row.
    properties = property_map(batch)
    queue = pc.map_lookup(properties, ORIGIN_PREFIX + "QUEUE_ID", "first")
    refusals = np.full(batch.num_rows, None, dtype=object)
    refusals[list(refused)] = list(refused.values())
    columns = [
        pc.map_lookup(properties, ORIGIN_PREFIX + "TOPIC", "first"),
        queue.cast(pa.int32()),
        *(batch["topic"], batch["queueId"]),
        pa.array(refusals, pa.string()),
        pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows),
        pc.binary_length(batch[body]).cast(pa.int64()),
        *(batch["queueOffset"], batch["queueOffset"]),
    ]
    return _grouped([pa.Table.from_arrays(columns, schema=_GROUPS)])


def _by_writer(spec: ReplaySpec, path: str, state: OpenState | None) -> Refusals:
    """Those of the target store's writer, and what of the broker's own records is not open."""
    config, how = StoreConfig.of(spec.target_conf), dialect(spec.release)
    members = takes_members(spec.asked())
    if has_content(path):
        with StoreReader.open(path, broker_conf=spec.target_conf) as target:
            config = config.with_defaults_of(target.geometry())

    def refusals(batch: pa.RecordBatch) -> Mapping[int, str]:
        rows = batch_to_append(batch, how, keep_timestamps=spec.keep_timestamps, members=members)
        refused = refused_rows(rows, lambda b: prepare(b, config, how, LOOPBACK, copied=True))
        ended = [] if state is None else state.rows_ended(batch)
        return {row: _plain(error) for row, error in refused} | dict.fromkeys(ended, ENDED)

    return refusals


def _plain(error: Refusal) -> str:
    """The reason without the number of the row: equal ones are counted."""
    reason = re.sub(r"^message \d+ of the batch: ", "", error.reason)
    return reason if error.expected is None else f"{reason} ({error.expected})"


def _by_client(spec: ReplaySpec) -> Refusals:
    # No connection is made to this address.
    client = GrpcClient("127.0.0.1:1", spec.fifo_topics, connect=False)

    def refusals(batch: pa.RecordBatch) -> Mapping[int, str]:
        refused: dict[int, str] = {}
        for number, row in enumerate(rows_to_send([batch])):
            try:
                client.prepare(row)
            except RefusedMessage as why:
                refused[number] = str(why)
        return refused

    return refusals
