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
_HINT = "10:00, -1h, ISO, ms"
_TIMES = (Field("since", "Stored since", _HINT), Field("until", "Stored before", _HINT))
TOPIC_FORM = Form(
    "topic", "Show", [Field("name", kind="hidden"), Field("queue", "Queue"), _TAG, *_TIMES]
)
"""The form that asks for some messages of a topic."""


def rows_from(batches: Iterable[pa.RecordBatch], start: int, count: int) -> pa.Table:
    """Some rows of batches; nothing behind them is read."""
    rows = pa.table({})
    for batch in batches:
        more = pa.Table.from_batches([batch.slice(min(start, batch.num_rows), count - len(rows))])
        start = max(0, start - batch.num_rows)
        rows = pa.concat_tables([rows, more]) if len(rows) else more
        if len(rows) == count:
            break
    return rows


def topic(question: Question) -> Page:
    """The messages of a topic, newest first, and its queues."""
    store, name, tags = question.store, question.needed("name"), question.word("tag")
    queue, upto = question.number("queue"), question.number("before")
    since, until = question.times()
    search = Search([name], None if queue is None else [queue], since, until)
    slices = selected_slices(store, search)
    if upto is not None:
        slices = before(store, slices, upto)
    newest = newest_slices(store, slices, ROWS, tags)
    rows = messages_in(store, newest, LISTED, tags, question.note)
    links = [("Its groups", address("groups", topic=name))]
    if any(end.start > whole.start for end, whole in zip(newest, slices, strict=True)):
        starts = [store.log_offset_of(end.queue, end.start) for end in newest if len(end)]
        place = min(rows["commitLogOffset"].to_pylist() + starts)
        links.insert(0, ("Older messages", question.same(before=place)))
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
        Field("key", "Key", "of KEYS, or UNIQ_KEY"),
        Field("id", "Id", "offsetMsgId, UNIQ_KEY"),
        Field("topic", "Topic"),
        _TAG,
        Field("property", "Property", "NAME=VALUE"),
        Field("text", "Text in the body"),
        *_TIMES,
        Field("system", "System topics too", kind="flag"),
    ],
)
"""The form that asks for messages by what they have."""


def find(question: Question) -> Page:
    """The messages that `rmqstore find` has for the same words."""
    if not any(question.word(field.name) for field in FIND_FORM.fields):
        return Page("Find messages", [], FIND_FORM)
    start = question.number("start") or 0
    rows = rows_from(_found(question), start, ROWS + 1)
    section = rows_section("found", "Messages, oldest first", rows.slice(0, ROWS))
    word = question.word("key") or question.word("id")
    if word is not None and not len(rows):
        section = replace(section, about=f"No message found{where_it_was(question.store, word)}.")
    return Page("Find messages", [section], FIND_FORM, question.next_rows(start, len(rows)))


def _found(question: Question) -> Iterator[pa.RecordBatch]:
    message_id = question.word("id")
    if message_id is not None:
        return find_by_id(question.store, message_id, LISTED, question.note, unwrap_batches=True)
    topic, key, text = (question.word(name) for name in ("topic", "key", "text"))
    name, _, value = (question.word("property") or "").partition("=")
    search = Search(
        None if topic is None else [topic],
        None,
        *question.times(),
        tags=question.word("tag"),
        properties={name: value} if name else {},
        text=None if text is None else text.encode(errors="surrogatepass"),
        include_system_topics=question.word("system") is not None,
        keys=() if key is None else (key,),
        unwrap_batches=True,
    )
    return find_by(question.store, search, LISTED, question.note)
