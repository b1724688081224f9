"""Read the waves of a replay as Arrow batches, each while the one before is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store import MessageStore
from rmq_store.files.parallel import one_ahead
from rmq_store.format.releases import Dialect
from rmq_store.questions.answer_by_shares import ask
from rmq_store.snapshot.log_slices import LogSlice
from rmqstore_jobs.replaying.replay_question import Handled, ReplayRows, columns_for_store
from rmqstore_jobs.replaying.replay_spec import ReplaySpec
from rmqstore_jobs.running.spark_engine import cores_of, engine_of
from rmqstore_jobs.running.store_selection import pieces_in
from spark_source.planning.pinned_plan import ReadPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IN_FLIGHT_BYTES = 64 << 20  # what fits into the default heap of 1 GiB
MIN_SHARE_BYTES = 4 << 20
MAX_SHARE_BYTES = 32 << 20
_AS_THEY_ARE = ("flag", "sysFlag", "bornTimestamp", "bornHost", "reconsumeTimes")


def read_waves(
    spark: SparkSession | None, spec: ReplaySpec, plan: ReadPlan, waves: Sequence[LogSlice]
) -> Iterator[tuple[LogSlice, Handled[list[pa.RecordBatch]]]]:
    """Each wave with the batches of its shares, in order, read into this process while the caller
    works on the one before. Raises the errors of the read."""
    # The driver's heap has the results of all cores at once, with several copies.
    bytes_a_core = IN_FLIGHT_BYTES // cores_of(spark)
    share_bytes = min(max(bytes_a_core, MIN_SHARE_BYTES), MAX_SHARE_BYTES)

    def read(wave: LogSlice) -> Handled[list[pa.RecordBatch]]:
        question = ReplayRows.of(
            spec,
            plan,
            pieces_in(plan, wave),
            _as_batches,
            columns=columns_for_store(spec),
            share_bytes=share_bytes,
            selected_bytes=wave.selected_bytes,
        )
        return ask(question, plan.store, engine_of(spark, tasks_a_core=1))

    return one_ahead((wave, read(wave)) for wave in waves)


def _as_batches(
    store: MessageStore, number: int, rows: Iterator[pa.RecordBatch]
) -> list[pa.RecordBatch]:
    return list(rows)


def to_append(
    batch: pa.RecordBatch, release: Dialect, *, keep_timestamps: bool, with_halves: bool = False
) -> pa.RecordBatch:
    """Rows of the source as a batch for `append_batch` of a store of `release`, with stored bodies
    and the matching sysFlag. `with_halves`: with the places of half messages, in the source."""
    columns = {
        "topic": batch["topic"],
        "queueId": batch["queueId"],
        "body": batch["rawBody"],
        **{name: batch[name] for name in _AS_THEY_ARE},
    }
    if "properties" in batch.schema.names:
        columns["properties"] = batch["properties"]
    else:
        columns["rawProperties"] = _as_written_by(release, batch["rawProperties"])
    if with_halves:
        columns["preparedTransactionOffset"] = batch["preparedTransactionOffset"]
    if keep_timestamps:
        columns["storeTimestamp"] = batch["storeTimestamp"]
    return pa.RecordBatch.from_pydict(columns)


def _as_written_by(release: Dialect, stored: pa.Array) -> pa.Array:
    """Property strings, without their last separator if the release leaves it out."""
    if not release.has("no_last_separator"):
        return stored
    return pc.if_else(pc.ends_with(stored, b"\x02"), pc.binary_slice(stored, 0, -1), stored)
