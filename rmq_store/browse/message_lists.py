"""The pages that list messages: of a topic, the newest first, and those that a search finds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from rmq_store.browse.grids import rows_section
from rmq_store.browse.listing import before, messages_in, newest_slices
from rmq_store.browse.page import ROWS, Field, Form, Page, Question, address
from rmq_store.search.find_messages import find as find_by
from rmq_store.search.find_messages import find_by_id
from rmq_store.search.plan_key_search import where_it_was
from rmq_store.search.queue_selection import Search, selected_slices, stored_in_time
from rmq_store.tables.queues import QUEUES, queue_rows

LISTED = (
    *("storeTimestamp", "topic", "queueId", "queueOffset", "tags", "keys", "uniqKey", "storeSize"),
    "commitLogOffset",
)
"""The columns of a list of messages."""
_TAG = Field("tag", "Tag", "or several: a || b")
_FORMS = "10:00, -1h, ISO, ms"
_TIMES = (Field("since", "Stored since", _FORMS), Field("until", "Stored before", _FORMS))
TOPIC_FORM = Form(
    "topic", "Show", [Field("name", kind="hidden"), Field("queue", "Queue"), _TAG, *_TIMES]
)
"""The form that asks for some messages of a topic."""


def rows_from(batches: Iterable[pa.RecordBatch], start: int, count: int) -> pa.Table:
    """Some rows of batches; nothing behind them is read."""
    found = pa.table({})
    for batch in batches:
        some = pa.Table.from_batches([batch.slice(min(start, batch.num_rows), count - len(found))])
        start = max(0, start - batch.num_rows)
        found = pa.concat_tables([found, some]) if len(found) else some
        if len(found) == count:
            break
    return found


def topic(asked: Question) -> Page:
    """The messages of a topic, newest first, and its queues."""
    store, name, tags = asked.store, asked.needed("name"), asked.word("tag")
    queue, upto, (since, until) = asked.number("queue"), asked.number("before"), asked.times()
    search = Search([name], None if queue is None else [queue], since, until)
    slices = selected_slices(store, search)
    if upto is not None:
        slices = before(store, slices, upto)
    newest = newest_slices(store, slices, ROWS, tags)
    rows = messages_in(store, newest, LISTED, tags, asked.note)
    links = [("Its groups", address("groups", topic=name))]
    if any(part.start > whole.start for part, whole in zip(newest, slices, strict=True)):
        starts = [store.log_offset_of(part.queue, part.start) for part in newest if len(part)]
        place = min(rows["commitLogOffset"].to_pylist() + starts)
        links.insert(0, ("Older messages", asked.same(before=place)))
    rows = rows.filter(pa.array(stored_in_time(rows, since, until)))
    queues = QUEUES.of_rows(store.broker_name, queue_rows(store, store.queues(name)))
    sections = [
        rows_section("messages", "Messages, newest first", rows, hidden=["topic"]),
        rows_section("queues", "Queues", queues, hidden=["brokerName", "topic"]),
    ]
    return Page(f"Topic {name}", sections, TOPIC_FORM, links)


FIND_FORM = Form(
    "find",
    "Find",
    [
        Field("key", "Key", "a word of KEYS, or a UNIQ_KEY"),
        Field("id", "Id", "offsetMsgId or UNIQ_KEY, alone"),
        Field("topic", "Topic"),
        _TAG,
        Field("property", "Property", "NAME=VALUE"),
        Field("text", "Text in the body"),
        *_TIMES,
        Field("system", "System topics too", kind="flag"),
    ],
)
"""The form that asks for messages by what they have."""


def find(asked: Question) -> Page:
    """The messages that `rmqstore find` has for the same words."""
    if not any(asked.word(one.name) for one in FIND_FORM.fields):
        return Page("Find messages", [], FIND_FORM)
    start = asked.number("start") or 0
    rows = rows_from(_found(asked), start, ROWS + 1)
    section = rows_section("found", "Messages, oldest first", rows.slice(0, ROWS))
    word = asked.word("key") or asked.word("id")
    if word is not None and not len(rows):
        section = replace(section, about=f"No message found{where_it_was(asked.store, word)}.")
    return Page("Find messages", [section], FIND_FORM, asked.next_rows(start, len(rows)))


def _found(asked: Question) -> Iterator[pa.RecordBatch]:
    message_id = asked.word("id")
    if message_id is not None:
        return find_by_id(asked.store, message_id, LISTED, asked.note, unwrap_batches=True)
    topic, key, text = (asked.word(name) for name in ("topic", "key", "text"))
    name, _, value = (asked.word("property") or "").partition("=")
    search = Search(
        None if topic is None else [topic],
        None,
        *asked.times(),
        tags=asked.word("tag"),
        properties={name: value} if name else {},
        text=None if text is None else text.encode(errors="surrogatepass"),
        include_system_topics=asked.word("system") is not None,
        keys=() if key is None else (key,),
        unwrap_batches=True,
    )
    return find_by(asked.store, search, LISTED, asked.note)
