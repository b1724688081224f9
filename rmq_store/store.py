"""MessageStore: a store as its users open it, to read and to write."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from rmq_store.config.broker_conf import ConfigLike
from rmq_store.reading.query import CommonReadOptions, OnDamage
from rmq_store.reading.store_reader import StoreReader

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rmq_store.dataset.message_dataset import MessageDataset
    from rmq_store.writing.store_writer import StoreWriter


class MessageStore(StoreReader):
    """A store opened to read. Reading writes nothing. `create` and `append_to` open one to write.

    `open` takes a snapshot; what a broker writes later is not seen. A context manager; one thread at
    a time; not picklable (its snapshot is).
    """

    @staticmethod
    def create(
        path: str | os.PathLike[str],
        config: ConfigLike = None,
        *,
        release: str | None = None,
        broker_name: str | None = None,
    ) -> StoreWriter:
        """Create a store in `path`, a new or empty folder, and open it to write.

        `release`: the release of the broker whose files to write. See `StoreWriter`.
        """
        from rmq_store.writing.store_writer import StoreWriter

        return StoreWriter.create(path, config, release=release, broker_name=broker_name)

    @staticmethod
    def append_to(
        path: str | os.PathLike[str],
        config: ConfigLike = None,
        *,
        release: str | None = None,
        broker_name: str | None = None,
        recovery: str = "strict",
        until: int | None = None,
    ) -> StoreWriter:
        """Open a store to append to; one that was not closed cleanly is recovered first.

        `recovery`: "strict" or "refuse"; `until`: where it cuts the log. See `StoreWriter`.
        """
        from rmq_store.writing.store_writer import StoreWriter

        return StoreWriter.append_to(
            path, config, release=release, broker_name=broker_name, recovery=recovery, until=until
        )

    def messages(
        self,
        topics: str | Sequence[str] | None = None,
        queue_ids: Collection[int] | None = None,
        *,
        since: int | str | None = None,
        until: int | str | None = None,
        columns: Sequence[str] | None = None,
        include_system_topics: bool = False,
        **how: Unpack[CommonReadOptions],
    ) -> MessageDataset:
        """The messages of `topics` as a `pyarrow.dataset.Dataset`, for DuckDB, Polars, DataFusion, pandas.

        Nothing is read before it is asked for, and then only the columns and the parts of the queues
        that a filter needs: see `rmq_store.dataset.message_dataset.MessageDataset`. It shows the state
        of this store, may be read any number of times and by several threads, also after `close`.

        `topics`: one name, several, or by default all user topics. `since`, `until`: store times, half-open,
        in ms since the epoch (UTC) or as texts like those of `rmqstore cat --since`, found by bisection.
        `columns`: those of its schema, by default all but rawBody and the like. `keys`: only messages with
        one of these words in KEYS or as UNIQ_KEY, by the index. The other keywords as in `read_slices`, but
        `log_order` is false, and `unwrap_batches` true: each message of an inner batch is a row.

        Raises UnknownQueueError for an unknown topic, InvalidArgumentError for an unknown column.
        """
        from rmq_store.dataset.message_dataset import messages_of

        return messages_of(
            [self],
            topics,
            queue_ids,
            since=since,
            until=until,
            columns=columns,
            include_system_topics=include_system_topics,
            **how,
        )

    def table(self, name: str, *, on_damage: OnDamage | None = None) -> pa.Table:
        """A table about the store, of those that `rmqstore table` prints: "queues", "files", "groups", ...

        docs/tables.md lists names and columns. `on_damage`: gets the errors of what a table of
        messages leaves out (`scheduled`, `transactions`, `deadLetters`, `retries`, `traces`); without it they
        are raised, as all others are. Raises InvalidArgumentError for an unknown name.
        """
        from rmq_store.tables import table_of

        return table_of(self, name, on_damage=on_damage)

    def _repr_html_(self) -> str:
        """What `rmqstore info` says of the store now, for a notebook."""
        from rmq_store.admin.info import html_of_store

        return html_of_store(self)
