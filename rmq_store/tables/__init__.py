"""What is to be known of a store besides its messages, as Arrow tables; no pyspark here."""

from __future__ import annotations

from collections.abc import Mapping

from rmq_store.tables.configs import CHECKPOINT_TABLE, CONFIG
from rmq_store.tables.content import DAMAGE, USAGE
from rmq_store.tables.groups import GROUPS, OFFSETS
from rmq_store.tables.ondisk import FILES, INDEX
from rmq_store.tables.plan import PLAN
from rmq_store.tables.queues import QUEUES, TOPICS
from rmq_store.tables.table import Table as Table

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
        PLAN,
    )
}
