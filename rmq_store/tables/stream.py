"""Table `stream`: how far behind a streaming query is. The query planner makes its rows."""

from __future__ import annotations

from rmq_store.tables.table import BROKER, LONG, TEXT, TIMESTAMP, Table, TableColumn

STREAM = Table(
    "stream",
    "how far behind a query of readStream is, by its checkpoint folder: one row for each store",
    (
        BROKER,
        TableColumn("path", TEXT, "the store; null if it is gone"),
        TableColumn("batchId", LONG, "the last micro-batch that the query committed"),
        TableColumn(
            "plannedBatchId", LONG, "the last one that it planned; it may be at work on it"
        ),
        TableColumn(
            "logOffset",
            LONG,
            "log offset up to which the committed micro-batches go; null for a store that is not "
            "in them",
        ),
        TableColumn("logEnd", LONG, "log offset where the whole records end now"),
        TableColumn(
            "bytesBehind", LONG, "bytes of the log between the two, or of the whole log if null"
        ),
        TableColumn(
            "storeTimestamp", TIMESTAMP, "when the last record before `logOffset` was stored"
        ),
        TableColumn(
            "problem",
            TEXT,
            "why the query cannot go on here: the log was cut, files expired, another store",
        ),
    ),
)
