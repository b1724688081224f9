"""Replay into Parquet: each share of the log becomes a file of the target folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from rmq_store import MessageStore
from rmq_store.arrow.column_definitions import DEFAULT_NAMES, arrow_schema
from rmq_store.files.durable_files import sync_file, sync_folder
from rmq_store.questions.answer_by_shares import ask
from rmq_store.text.progress import Progress
from rmqstore_jobs.replaying.replay_question import ReplayRows
from rmqstore_jobs.replaying.replay_spec import ReplaySpec
from rmqstore_jobs.running.spark_engine import engine_of
from spark_source.planning.pinned_plan import ReadPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARQUET = "parquet"
_ROW_GROUP_BYTES = 64 << 20
_WHOLE = "_SUCCESS"  # as Spark's writers mark a folder with all its files


def write_parquet(
    spark: SparkSession | None, spec: ReplaySpec, plan: ReadPlan, path: str
) -> Counter[str]:
    """Write the rows of a plan into a folder, instead of the Parquet files in it.

    Returns the counts of the rules, and as PARQUET the rows in the files. Raises the errors of the
    read, and OSError.
    """
    folder = Path(path).absolute()  # executors have a working folder of their own
    folder.mkdir(parents=True, exist_ok=True)
    for stale in (folder / _WHOLE, *folder.glob("*.parquet"), *folder.glob(".*.parquet")):
        stale.unlink(missing_ok=True)
    question = ReplayRows.of(
        spec, plan, plan.ranges, partial(_write_share, folder), columns=DEFAULT_NAMES
    )
    with Progress("replay") as progress:
        handled = ask(question, plan.store, engine_of(spark), progress=progress)
    if not any(handled.parts):
        # Readers need a file to know the columns.
        pq.write_table(arrow_schema(DEFAULT_NAMES).empty_table(), folder / "part-00000.parquet")
    (folder / _WHOLE).touch()
    sync_folder(folder)  # the journal must not be ahead of the disk
    return handled.counts + Counter({PARQUET: sum(handled.parts)})


def _write_share(
    folder: Path, store: MessageStore, number: int, rows: Iterator[pa.RecordBatch]
) -> int:
    """Write the rows of a share to its file, if it has any. Returns their number."""
    first = next(rows, None)
    if first is None:
        return 0
    final = folder / f"part-{number:05d}.parquet"
    unfinished = final.with_name(f".{final.name}")
    count = waiting_bytes = 0
    waiting: list[pa.RecordBatch] = []
    with pq.ParquetWriter(unfinished, first.schema) as writer:
        for batch in chain([first], rows):
            waiting.append(batch)
            waiting_bytes += batch.nbytes
            count += batch.num_rows
            if waiting_bytes >= _ROW_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(waiting))
                waiting, waiting_bytes = [], 0
        writer.write_table(pa.Table.from_batches(waiting, first.schema))
    sync_file(unfinished)
    unfinished.rename(final)
    return count
