"""Read the waves of a replay as Arrow tables, each while the one before is written."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from jobs.replaying.rows import READ_FOR_STORE, Rows
from rmq_store.arrow.message_columns import TIMESTAMP
from rmq_store.search.log_slices import LogSlice, pieces_of

ROWS_PER_APPEND = 8192
IN_FLIGHT_BYTES = 64 << 20  # what fits into the default heap of 1 GiB
MIN_PARTITION_BYTES = 4 << 20
MAX_PARTITION_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class WaveRows:
    """The matching rows of a range of the log, and the counters of the read."""

    table: pa.Table
    counts: Mapping[str, int]


class WaveReader:
    """Reads waves through Spark into this process."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def read_all(self, waves: Sequence[LogSlice]) -> Iterator[tuple[LogSlice, WaveRows]]:
        """Each wave with its rows, in order. Raises the errors of the read."""
        with ThreadPoolExecutor(1) as ahead:
            reading = deque(ahead.submit(self._read, wave) for wave in waves[:1])
            for i, wave in enumerate(waves):
                rows = reading.popleft().result()
                reading.extend(ahead.submit(self._read, after) for after in waves[i + 1 : i + 2])
                yield wave, rows

    def _read(self, wave: LogSlice) -> WaveRows:
        plan = self.rows.plan
        with plan.store.open() as source:
            pieces = pieces_of(plan.ranges, wave, source.view.offset_at_log)
        frame, counted = self.rows.frame(pieces, READ_FOR_STORE, self._partition_bytes())
        table = frame.toArrow()
        if self.rows.spec.by_index:  # index hits come first, then rows that no index covers
            table = table.sort_by("commitLogOffset")
        return WaveRows(table, {} if counted is None else counted.get)

    def _partition_bytes(self) -> int:
        """The partition size. All cores send results through the driver's heap at once, with
        several copies."""
        share = IN_FLIGHT_BYTES // self.rows.spark.sparkContext.defaultParallelism
        return min(max(share, MIN_PARTITION_BYTES), MAX_PARTITION_BYTES)


def to_append(table: pa.Table, *, keep_timestamps: bool) -> Iterator[pa.RecordBatch]:
    """Rows of the source as batches for `append_batch`, with stored bodies and the matching
    sysFlag."""
    columns = {
        "topic": table["topic"],
        "queueId": table["queueId"],
        "body": table["rawBody"],
        "properties": table["properties"],
        "flag": table["flag"],
        "sysFlag": table["sysFlag"],
        "bornTimestamp": table["bornTimestamp"].cast(TIMESTAMP),
        "bornHost": table["bornHost"],
        "reconsumeTimes": table["reconsumeTimes"],
    }
    if keep_timestamps:
        columns["storeTimestamp"] = table["storeTimestamp"].cast(TIMESTAMP)
    yield from pa.table(columns).to_batches(max_chunksize=ROWS_PER_APPEND)
