"""Tables about a store besides its messages, as Arrow tables. Imports no pyspark."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from rmq_store.errors import InvalidArgumentError, nearest
from rmq_store.reading.query import OnDamage
from rmq_store.reading.store_reader import StoreReader
from rmq_store.tables.diff import DIFF
from rmq_store.tables.files import CHECKPOINT_TABLE, CONFIG, FILES, INDEX
from rmq_store.tables.groups import GROUPS, OFFSETS
from rmq_store.tables.plan import PLAN, STREAM
from rmq_store.tables.queues import DAMAGE, QUEUES, TOPICS, USAGE
from rmq_store.tables.system_topics import (
    DEAD_LETTERS,
    POP,
    RETRIES,
    SCHEDULED,
    TRACES,
    TRANSACTIONS,
)
from rmq_store.tables.table import Table as Table

TABLES: Mapping[str, Table] = {
    table.name: table
    for table in (
        *(TOPICS, QUEUES, FILES, INDEX, CHECKPOINT_TABLE, GROUPS, OFFSETS, CONFIG, USAGE, DAMAGE),
        *(SCHEDULED, TRANSACTIONS, DEAD_LETTERS, RETRIES, POP, TRACES, DIFF, PLAN, STREAM),
    )
}

TABLES_OF_A_STORE: Mapping[str, Table] = {
    name: table for name, table in TABLES.items() if table.rows_of or table.rows_past_damage
}
"""Those whose rows a store alone determines. Those of the others come from a query."""

TABLES_OF_MESSAGES = [name for name, table in TABLES.items() if table.rows_past_damage]
"""Those of messages in the broker's own topics, which may leave out damaged ones."""


def table_of(store: StoreReader, name: str, *, on_damage: OnDamage | None = None) -> pa.Table:
    """A table of a store by its name: see `MessageStore.table`."""
    table = TABLES_OF_A_STORE.get(name)
    if table is None:
        raise InvalidArgumentError(
            reason=f"there is no table {name!r} of a store", advice=nearest(name, TABLES_OF_A_STORE)
        )
    if table.rows_past_damage is None and on_damage is not None:
        raise InvalidArgumentError(
            reason=f"table {name!r} leaves nothing out, and takes no on_damage",
            advice=f"Those of messages do: {', '.join(TABLES_OF_MESSAGES)}",
        )
    return table.of(store, on_damage=on_damage)
