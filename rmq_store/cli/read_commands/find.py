"""rmqstore find."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.command import EXIT_FAILED, command
from rmq_store.cli.messages import (
    MESSAGE_FORM,
    RAW,
    TEXT_COLUMNS,
    Damage,
    MessageForm,
    where_it_was,
)
from rmq_store.cli.options import (
    KEYS,
    LIMIT,
    QUEUES,
    SINCE,
    SKIP_DAMAGED,
    STORE,
    SYSTEM,
    TAGS,
    TOPICS,
    UNTIL,
    StoreArgs,
    flag,
    opened_stores,
    option,
    time_range,
    word,
)
from rmq_store.cli.output import Output, problem
from rmq_store.text.progress import Progress
from rmq_store.text.times import Time

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store.format.record import Message
    from rmq_store.reading.query import OnDamage
    from rmq_store.store import MessageStore


@command
def find(
    at: StoreArgs = STORE,
    topics: tuple[str, ...] = TOPICS,
    queue_ids: tuple[int, ...] = QUEUES,
    keys: tuple[str, ...] = KEYS,
    message_id: str | None = option(
        "--id", type=word, metavar="ID", help="Only messages with this offsetMsgId or UNIQ_KEY."
    ),
    tags: str | None = TAGS,
    properties: tuple[str, ...] = option(
        "--property", multiple=True, metavar="NAME=VALUE", help="With this property."
    ),
    begin: Time | None = SINCE,
    end: Time | None = UNTIL,
    text: str | None = option(
        "--text", type=word, metavar="TEXT", help="Only messages with this text in the body."
    ),
    system: bool = SYSTEM,
    limit: int | None = LIMIT,
    explain: bool = flag("--explain", help="Show what the search reads, not the messages."),
    skip_damaged: bool = SKIP_DAMAGED,
    raw: bool = RAW,
    form: MessageForm = MESSAGE_FORM,
) -> bool:
    """Print the messages that match all given options. Exit code 1 if none match.

    STORE may be a pattern such as '/data/*/store': column brokerName names the store of a message.
    """
    from rmq_store.cli.batch_printer import BatchPrinter
    from rmq_store.search.find_messages import find as search_for
    from rmq_store.search.queue_selection import Search

    conditions = (topics, queue_ids, keys, tags, properties, begin, end, text)
    if message_id is not None and any(conditions):
        raise click.UsageError("--id names one message; leave out the other conditions")
    if not any((*conditions, message_id, limit)):
        raise click.UsageError(
            "find needs something to search for, such as --topic, --key or --since, or --limit N; "
            "cat prints a whole topic"
        )
    damage = Damage(skip_damaged)
    words = [*keys, *([] if message_id is None else [message_id])]
    # What a look-up cannot read says nothing of what it finds.
    on_damage = damage if skip_damaged or words else None
    count, where, rows = 0, "", list[dict[str, Any]]()
    with damage, opened_stores(at) as stores, Progress("find") as progress:
        if len(stores) > 1 and form.columns is None and not form.as_json:
            form = replace(form, columns=f"brokerName,{TEXT_COLUMNS}")
        names, printer = form.names(), BatchPrinter(form, progress)
        search = Search(
            list(topics) or None,
            queue_ids or None,
            *time_range(stores, begin, end),
            tags=tags,
            properties=dict(map(_name_and_value, properties)),
            text=None if text is None else _in_charset(text, form.charset),
            include_system_topics=system,
            keys=keys,
            unwrap_batches=not raw,
        )
        known = set[str]().union(*(store.view.topics.every for store in stores))
        for store in stores:
            # A topic of another store is searched there; the search refuses one that no store has.
            others = known.difference(store.view.topics.every)
            own = [topic for topic in topics if topic not in others]
            if topics and not own:
                continue
            batches = (
                search_for(store, replace(search, topics=own or None), names, on_damage, progress)
                if message_id is None
                else _by_id(store, message_id, names, on_damage, raw)
            )
            left = None if limit is None else limit - count
            if explain:
                rows.append(_explained(store, batches, left))
                count += rows[-1]["messages"]
            else:
                count += printer.print(batches, left)
            if count == limit:
                break
        if not count and len(stores) == 1:
            where = _id_leads_to(store, message_id)
            where += "".join(where_it_was(store, word, topics) for word in words)
    Output(form.as_json).rows(rows)
    if not count:
        several = f" in {len(stores)} stores" if len(stores) > 1 else ""
        problem(f"no message found{several}{where}")
    if damage.conclude() and not skip_damaged and not count:
        raise click.exceptions.Exit(EXIT_FAILED)
    return not count or damage.count > 0


def _explained(
    store: MessageStore, batches: Iterable[pa.RecordBatch], limit: int | None
) -> dict[str, Any]:
    """What a search reads of a store until it has `limit` messages."""
    messages = 0
    for batch in batches:
        messages += batch.num_rows
        if limit is not None and messages >= limit:
            messages = limit
            break
    reads = store.reads()
    return {
        "brokerName": store.broker_name,
        "indexFiles": len(reads.key_index.files),
        "items": reads.key_index.checked,
        "records": reads.log.checked,
        "logFiles": len(reads.log.files),
        "logBytes": reads.log.bytes,
        "messages": messages,
    }


def _in_charset(text: str, charset: str | None) -> bytes:
    """The bytes of a text in a body."""
    try:
        return text.encode(charset or "utf-8")
    except UnicodeEncodeError:
        raise click.UsageError(f"{text!r} cannot be written in charset {charset}") from None


def _name_and_value(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value


def _id_leads_to(store: MessageStore, message_id: str | None) -> str:
    """What an offsetMsgId that leads to no message leads to."""
    from rmq_store.errors import StoreError
    from rmq_store.format.record import log_offset_of_id

    offset = None if message_id is None else log_offset_of_id(message_id)
    if offset is None or offset < 0:
        return ""
    with suppress(StoreError):
        own = store.message_at(offset).msg_id
        return (
            f"; as an offsetMsgId it means log offset {offset}, where a message of another host starts, "
            f"{own}; the id may be of another broker"
        )
    return f"; as an offsetMsgId it means log offset {offset}, where no such message starts"


def _by_id(
    store: MessageStore,
    message_id: str,
    columns: tuple[str, ...] | None,
    on_damage: OnDamage | None,
    raw: bool,
) -> Iterator[pa.RecordBatch]:
    """The messages with an id. A message in no queue is read from the log."""
    from rmq_store.format.queues import QueueId, QueueSlice

    for message in store.messages_by_id(message_id, on_damage):
        if message.queue_offset is None:
            at = message.commit_log_offset
            yield from store.read_log(
                at,
                at + message.store_size,
                columns=columns,
                include_unqueued=True,
                check_ends=False,
                on_damage=on_damage,
            )
            continue
        queue = QueueId(message.topic, message.queue_id)
        stop = message.queue_offset + _messages_in(message, message_id)
        part = QueueSlice(queue, message.queue_offset, stop)
        yield from store.read_slices(
            [part],
            columns=columns,
            unwrap_batches=not raw,
            check_ends=False,
            compacted=False,
            on_damage=on_damage,
        )


def _messages_in(message: Message, message_id: str) -> int:
    """The number of messages that an id leads to: an offsetMsgId leads to a whole inner batch."""
    from rmq_store.format.byte_layout import Property
    from rmq_store.format.sys_flag import SysFlag

    if not message.sys_flag & SysFlag.INNER_BATCH or message.msg_id != message_id.upper():
        return 1
    stated = message.properties.get(Property.INNER_NUM, "")
    return int(stated) if re.fullmatch("[0-9]{1,9}", stated) else 1
