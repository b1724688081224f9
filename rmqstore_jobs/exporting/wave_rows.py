"""How an export reads: the messages of a wave, with the day of each, share by share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store import MessageStore
from rmq_store.arrow.column_definitions import DEFAULT_NAMES, arrow_schema
from rmq_store.format.queues import QueueSlice
from spark_source.options.definitions import BY_LOG, CORRUPT, PERMISSIVE
from spark_source.partition_reader import read_share
from spark_source.planning.partitions import Share, reporting_shares, shares_of
from spark_source.planning.pinned_plan import QueryPlan, ReadPlan
from spark_source.task_damage import DamageHandler

TOPIC, DAY = "topic", "day"
_NEEDED = ("topic", "storeTimestamp", "commitLogOffset")


@dataclass(frozen=True, slots=True)
class ExportRead:
    """The rows of a wave. In mode PERMISSIVE, rows about damage are described by `corruptRecord`."""

    plan: ReadPlan
    columns: tuple[str, ...]
    verifies: bool

    @classmethod
    def of(cls, plan: ReadPlan, pieces: Sequence[QueueSlice], *, is_first: bool) -> ExportRead:
        """The rows of `pieces`, with the columns that a target needs. verifyQueue verifies the whole log,
        with the first wave."""
        names = plan.asked.columns or DEFAULT_NAMES
        needed = (*_NEEDED, CORRUPT) if plan.asked.mode == PERMISSIVE else _NEEDED
        columns = (*names, *(name for name in needed if name not in names))
        asked = replace(plan.asked, split_by=BY_LOG)
        wave = replace(plan, ranges=tuple(pieces), asked=asked, is_wave=True)
        return cls(wave, columns, is_first and asked.verify_queue)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches: the columns, and the day."""
        fields = list(arrow_schema(self.columns))
        if self.plan.asked.mode == PERMISSIVE:
            fields = [field.with_nullable(True) for field in fields]
        return pa.schema([*fields, pa.field(DAY, pa.date32())])

    def shares(self) -> list[tuple[int, Share]]:
        """The shares with their numbers, and those that report what is missing."""
        plan = QueryPlan((self.plan,))
        shares = shares_of(plan, self.columns)
        return list(enumerate((*shares, *reporting_shares(plan, verify=self.verifies))))

    def batches(
        self, store: MessageStore, share: Share, damage: DamageHandler
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a share in log order. The day is that of storeTimestamp, in UTC."""
        for batch in read_share(self.plan, share, store, self.columns, damage):
            day = pc.floor_temporal(batch["storeTimestamp"], unit="day").cast(pa.date32())
            yield pa.RecordBatch.from_arrays([*batch.columns, day], schema=self.schema)
