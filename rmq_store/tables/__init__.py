"""Tables about a store besides its messages, as Arrow tables. Imports no pyspark."""

from __future__ import annotations

from collections.abc import Mapping

from rmq_store.tables.checkpoint_config import CHECKPOINT_TABLE, CONFIG
from rmq_store.tables.files_index import FILES, INDEX
from rmq_store.tables.groups_offsets import GROUPS, OFFSETS
from rmq_store.tables.plan import PLAN, STREAM
from rmq_store.tables.retries_traces import DEAD_LETTERS, RETRIES, TRACES
from rmq_store.tables.scheduled_transactions import SCHEDULED, TRANSACTIONS
from rmq_store.tables.table import Table as Table
from rmq_store.tables.topics_queues import QUEUES, TOPICS
from rmq_store.tables.usage_damage import DAMAGE, USAGE

TABLES: Mapping[str, Table] = {
    table.name: table
    for table in (
        TOPICS,
        QUEUES,
        FILES,
        INDEX,
        CHECKPOINT_TABLE,
        GROUPS,
        OFFSETS,
        CONFIG,
        USAGE,
        DAMAGE,
        SCHEDULED,
        TRANSACTIONS,
        DEAD_LETTERS,
        RETRIES,
        TRACES,
        PLAN,
        STREAM,
    )
}
