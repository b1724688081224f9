"""`option("table", …)`: tables about stores besides their messages, and about the plan and the progress of
a query."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.walk import next_record_or_gap
from rmq_store.errors import InvalidArgumentError, StoreError, from_os_error
from rmq_store.files.segments import again_if_expired
from rmq_store.format.queues import QueueSlice
from rmq_store.reading.log_reader import require_same_log
from rmq_store.reading.store_reader import StoreReader
from rmq_store.scan.options import BY_QUEUE
from rmq_store.scan.parse_options import ScanOptions
from rmq_store.scan.scan import Scan, StoreToOpen
from rmq_store.scan.tasks import (
    Share,
    StoreScan,
    pieces_of_share,
    read_messages,
    reported_errors,
    reporting_shares,
    shares_of,
    tasks_of,
)
from rmq_store.tables import TABLES
from rmq_store.tables.diff import rows_of_differences
from rmq_store.tables.plan import files_opened, log_files_between
from rmq_store.tables.queues import damage_row
from rmq_store.tables.table import TIMESTAMP, Row, Table
from spark_source.spark_types import (
    SPARK_TIMESTAMP,
    batch_for_spark,
    partitions_of,
    plain_errors,
    struct_field,
)
from spark_source.streaming.micro_batch_ends import (
    Follower,
    StorePlace,
    StreamOptions,
    places_from_dict,
)

USAGE, DAMAGE, DIFF, PLAN, STREAM = "usage", "damage", "diff", "plan", "stream"


def table_schema(name: str) -> StructType:
    """The Spark schema of a table. The comments are the meanings of the columns."""
    table = TABLES[name]
    pairs = zip(table.schema, table.columns, strict=True)
    return StructType([struct_field(field, column.meaning) for field, column in pairs])


class TableReader(DataSourceReader):
    """Reads a table about the stores of a query.

    A partition has the task, for the rows of some stores or of shares of their messages, or the rows.
    """

    def __init__(self, scan: Scan, name: str, schema: StructType) -> None:
        own = table_schema(name)
        for field in schema.fields:
            if field.name not in own.fieldNames() or own[field.name].dataType != field.dataType:
                raise InvalidArgumentError(
                    reason=f"table {name!r} has no column {field.name!r} of type "
                    f"{field.dataType.simpleString()}",
                    expected=own.simpleString(),
                    advice="Leave out the schema and use select(...)",
                )
        self.scan, self.table, self.names = scan, name, schema.fieldNames()

    @plain_errors()
    def partitions(self) -> Sequence[InputPartition]:
        """Partitions of whole stores; for `usage` and `damage`, which read messages, of shares."""
        if self.table == PLAN:
            return [InputPartition(list(plan_rows(self.scan)))]
        if self.table == STREAM:
            rows = [row for store in self.scan.stores[:1] for row in progress_rows(store.options)]
            return [InputPartition(rows)]
        if self.table == DIFF:
            if len(self.scan.stores) != 2:
                raise InvalidArgumentError(
                    reason="table 'diff' compares two stores",
                    actual=f"{len(self.scan.stores)} stores",
                    advice='Give both: option("stores", \'{"master": "/data/a", "slave": "/data/b"}\')',
                )
            return [InputPartition((Share(0),))]
        if self.table == DAMAGE:
            shares = shares_of(self.scan.stores, ("body",))
            shares += reporting_shares(self.scan.stores, verify=True)
        elif self.table == USAGE:
            shares = shares_of(self.scan.with_options(split_by=BY_QUEUE).stores)
        else:
            snapshots = enumerate(store.store.snapshot for store in self.scan.stores)
            shares = [
                Share(n, log_bytes=snapshot.log_end - snapshot.log_start)
                for n, snapshot in snapshots
            ]
        return partitions_of(tasks_of(self.scan.stores, shares))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        table = TABLES[self.table]
        if self.table in (PLAN, STREAM):
            yield from self._batches(table.pieces_of_rows("", partition.value))
            return
        for share in partition.value:
            scan = self.scan.stores[share.store]
            with plain_errors(), scan.store.open() as store:
                yield from self._batches(self._pieces(table, scan, share, store))

    def _pieces(
        self, table: Table, scan: StoreScan, share: Share, store: StoreReader
    ) -> Iterator[pa.Table]:
        if self.table == DIFF:
            with self.scan.stores[1].store.open() as other:
                yield from table.pieces_of_rows(
                    store.broker_name, rows_of_differences(store, other)
                )
        elif share.reports:
            errors = map(damage_row, reported_errors(scan, share, store))
            yield from table.pieces_of_rows(store.broker_name, errors)
        elif self.table == DAMAGE:
            yield from table.pieces_of_rows(store.broker_name, _damage_of(scan, share, store))
        elif self.table == USAGE:
            yield from table.pieces(store, _slices_of(scan, share, store))
        else:
            yield from table.pieces(store, wanted=self.names)

    def _batches(self, pieces: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            rows = piece.select(self.names)
            times = {TIMESTAMP: SPARK_TIMESTAMP}
            fields = [field.with_type(times.get(field.type, field.type)) for field in rows.schema]
            for batch in rows.to_batches():
                yield batch_for_spark(batch, pa.schema(fields))


def _slices_of(scan: StoreScan, share: Share, store: StoreReader) -> list[QueueSlice]:
    return [part for pieces in pieces_of_share(scan, share, store) for part in pieces]


def _damage_of(scan: StoreScan, share: Share, store: StoreReader) -> Iterator[Row]:
    met: list[StoreError] = []
    options = replace(scan.options, tags=None, keys=None, unwrap_batches=False)
    unfiltered, columns = replace(scan, options=options), ("commitLogOffset", "body")
    for _ in read_messages(unfiltered, share, store, columns, {"on_damage": met.append}):
        yield from map(damage_row, met)
        met.clear()
    yield from map(damage_row, met)


# --- the plan -------------------------------------------------------------------------------------


def plan_rows(scan: Scan) -> Iterator[Row]:
    """The rows of the table `plan`."""
    tasks = enumerate(tasks_of(scan.stores, shares_of(scan.stores)))
    for number, share in ((number, share) for number, task in tasks for share in task):
        of_store = scan.stores[share.store]
        row: dict[str, object] = {
            "brokerName": of_store.store.broker_name,
            "path": of_store.store.path,
            "partition": number,
            "readsLog": of_store.reads_log(),
        }
        piece = share.slice
        if piece is not None:
            row |= {"logStart": piece.start, "logStop": piece.stop}
            row["selectedBytes"] = piece.selected_bytes
        with of_store.store.open() as store:
            if of_store.limits is None:
                row |= _ranges_row(of_store, share, store)
            else:
                assert piece is not None
                row["files"] = log_files_between(store, piece.start, piece.stop)
        yield row
    for left_out in scan.left_out:
        yield {
            "brokerName": left_out.broker_name or "",
            "path": left_out.path,
            "leftOut": left_out.reason,
        }


def _ranges_row(scan: StoreScan, share: Share, store: StoreReader) -> Row:
    slices = _slices_of(scan, share, store)
    ranges: dict[str, dict[str, list[list[int]]]] = {}
    for slice_ in slices:
        of_topic = ranges.setdefault(slice_.queue.topic, {})
        of_topic.setdefault(str(slice_.queue.queue_id), []).append([slice_.start, slice_.stop])
    return {
        "queues": len({slice_.queue for slice_ in slices}),
        "entries": sum(map(len, slices)),
        "files": files_opened(store, slices, with_log=scan.reads_log()),
        "ranges": json.dumps(ranges),
    }


# --- the progress of a query ---------------------------------------------------------------------
#
# Its checkpoint folder, as Spark writes it, has what was planned and what was committed.
#
# Source: OffsetSeqLog and CommitLog of Spark's structured streaming.


_FORMAT = "v1"


def read_progress(folder: str) -> tuple[int | None, int | None, list[dict[str, StorePlace]]]:
    """The last micro-batch of a query that is committed, the last one that is planned, and up to where the
    committed ones go, by broker name, for each of the query's sources that is a stream of rmqstore.

    `folder`: its checkpoint, on a local or mounted disk. Raises InvalidArgumentError for another folder,
    and for one that another source wrote.
    """
    offsets, commits = Path(folder, "offsets"), Path(folder, "commits")
    if not offsets.is_dir():
        raise InvalidArgumentError(
            folder,
            reason="this is no checkpoint folder of a query: it has no folder 'offsets'",
            advice="Give the option checkpointLocation of the query, a folder on a local or mounted "
            "disk",
        )
    planned = _numbers(offsets)
    # Spark deletes old offsets before their commits.
    committed = max(set(_numbers(commits)) & set(planned), default=None)
    places = [] if committed is None else _places(folder, offsets / str(committed))
    return committed, max(planned, default=None), places


def _numbers(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.glob("*") if path.name.isdigit()]


def _places(folder: str, file: Path) -> list[dict[str, StorePlace]]:
    try:
        version, _, *sources = file.read_text().splitlines()
    except OSError as error:
        raise from_os_error(file, error, "reading") from error
    except ValueError:
        version, sources = "", []
    if version != _FORMAT:
        raise InvalidArgumentError(
            str(file),
            reason=f"the offsets of this query are in format {version!r}",
            advice=f"Formats other than {_FORMAT} are not known to this release",
        )
    places = []
    for line in sources:
        try:
            values = json.loads(line)
        except ValueError:
            continue  # another source, or "-" for one that gave nothing
        if isinstance(values, dict) and "stores" in values:
            places.append(places_from_dict(values))
    if not places:
        raise InvalidArgumentError(
            folder,
            reason="this query does not read a stream of rmqstore",
            advice="Give the checkpoint folder of a query that does",
        )
    return places


def progress_rows(options: ScanOptions) -> Iterator[Row]:
    """How far the query of a checkpoint folder is in each store. Reads no queue of a live store.

    Raises as `read_progress`, and the errors of opening a store.
    """
    assert options.checkpoint is not None
    committed, planned, places_of_sources = read_progress(options.checkpoint)
    follower = Follower(options, StreamOptions())
    stores = follower.targets()
    for places in places_of_sources or ({},):
        for name in sorted({*stores, *places}):
            known, begins = places.get(name), committed is None
            look = partial(_of_store, follower, name, stores.get(name), known, begins)
            batches = {"batchId": committed, "plannedBatchId": planned}
            yield {"brokerName": name, **batches, **again_if_expired(look)}


def _of_store(
    follower: Follower,
    name: str,
    target: StoreToOpen | None,
    reached: StorePlace | None,
    begins: bool,
) -> Row:
    """`reached`: the place up to which the query has gone; `begins`: it has committed nothing yet."""
    log_offset = None if reached is None else reached.place.offset
    if target is None:
        return {"logOffset": log_offset, "problem": "the store is gone"}
    with follower.open(name, target) as store:
        row: dict[str, object] = {"path": target.path, "logOffset": log_offset}
        if reached is not None:
            try:
                require_same_log(store.log, reached.place, target.path)
            except StoreError as error:
                row["problem"] = str(error)
        start = store.log.start if reached is None or "problem" in row else reached.place.offset
        end = follower.end_finder_of(name, target).end(store.log, start)
        row["logEnd"] = end
        if "problem" in row or (reached is None and begins):
            return row  # nothing says where the query begins
        row["bytesBehind"] = end - start
        if reached is not None:
            row["storeTimestamp"] = time_before(store.log, start)
        return row


def time_before(log: CommitLog, offset: int) -> int | None:
    """When the record that ends at a log offset was stored (ms); None if it has expired."""
    segment = log.chain.segment_at(offset - 1)
    if segment is None:
        return None
    _, start = next_record_or_gap(log, segment, offset - 1)
    return None if start is None else log.store_time_at(start)
