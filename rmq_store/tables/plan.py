"""Table `plan`: what a query would read. Its rows are made where queries are planned."""

from __future__ import annotations

from rmq_store.tables.table import BROKER, FLAG, INT, LONG, TEXT, TEXTS, Table, TableColumn

PLAN = Table(
    "plan",
    "what a query with the same options (and filters) would read, partition by partition",
    (
        BROKER,
        TableColumn("path", TEXT, "the store"),
        TableColumn("partition", INT, "number of the partition; null for a store that is left out"),
        TableColumn("logStart", LONG, "log offset where its slice of the log begins; null if open"),
        TableColumn("logStop", LONG, "log offset where it ends; null if open"),
        TableColumn("queues", INT, "queues that have messages in it"),
        TableColumn("entries", LONG, "queue entries to be read; messages, before tags and keys"),
        TableColumn("selectedBytes", LONG, "about how many bytes of records that is"),
        TableColumn("readsLog", FLAG, "whether the log is opened, or the queues suffice"),
        TableColumn("files", TEXTS, "the files that are opened"),
        TableColumn("ranges", TEXT, 'queue offsets, as JSON: {"topic": {"0": [[start, stop]]}}'),
        TableColumn("leftOut", TEXT, "why a store was left out"),
    ),
)
