"""rmqstore cat, find, trace: messages of a topic, of a search, of a key."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli import options
from rmq_store.cli.command import EXIT_FAILED, command
from rmq_store.cli.messages import (
    DAMAGE,
    MESSAGE_FORM,
    RAW,
    TEXT_COLUMNS,
    MessageForm,
    SkippedDamage,
)
from rmq_store.cli.options import StoreArgs, argument, flag, option
from rmq_store.cli.output import OUTPUT, Output, print_line, problem
from rmq_store.errors import InvalidArgumentError
from rmq_store.text.progress import Progress
from rmq_store.text.sizes import counted
from rmq_store.text.times import Time, shown_time

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store.reading.store_reader import StoreReader
    from rmq_store.search.message_history import GroupOutcome, MessageHistory
    from rmq_store.search.selection import Search


@command
def cat(
    at: StoreArgs = options.STORE,
    topic: str = options.TOPIC.but(help="The topic.", required=True),
    queue_ids: tuple[int, ...] = options.QUEUES,
    offset: int | None = option(
        "--offset", type=options.WholeNumber(min=0), metavar="N", help="Start at this queue offset."
    ),
    begin: Time | None = options.SINCE,
    end: Time | None = options.UNTIL,
    tags: str | None = options.TAGS,
    limit: int | None = options.LIMIT,
    damage: SkippedDamage = DAMAGE,
    raw: bool = RAW,
    history: bool = options.HISTORY,
    verify_queue: bool = flag(
        "--verify-queue",
        help="Hold each entry against its record, even if no column needs the log.",
    ),
    form: MessageForm = MESSAGE_FORM,
) -> bool:
    """Print the messages of a topic in log order; values are separated by tabs.

    Examples:
        rmqstore cat /data/store --topic orders --since -1h --limit 10
        rmqstore cat /data/store --topic orders --queue 1 --offset 100 --limit 5
        # one JSON object per message, for jq
        rmqstore cat /data/store --topic orders --json --columns storeTimestamp,keys
    """
    from rmq_store.arrow.column_definitions import column_names
    from rmq_store.cli.batch_printer import BatchPrinter
    from rmq_store.format.queues import QueueSlice
    from rmq_store.search.find_messages import with_place_column, with_progress
    from rmq_store.search.selection import (
        CLOCK_SLACK_MS,
        DamageInRanges,
        Search,
        ranges_in_store,
        stored_in_time,
    )

    read = column_names(form.names())
    with damage, at.open() as opened, Progress("cat") as progress:
        times = options.time_range([opened], begin, end)
        search = Search([topic], queue_ids or None, *times, compacted=not history)
        slices = ranges_in_store(opened, search, CLOCK_SLACK_MS)
        if offset is not None:
            _require_offset(opened, search, offset)
            slices = [QueueSlice(s.queue, max(s.start, offset), s.stop) for s in slices]
        needed = list(dict.fromkeys([*read, *(["storeTimestamp"] if search.is_timed else [])]))
        batches = opened.read_slices(
            slices,
            columns=with_place_column(needed) if progress.active else needed,
            tags=tags,
            unwrap_batches=not raw,
            verify_queue=verify_queue,
            on_damage=damage.handler,
            concerns=DamageInRanges(opened, search),
            compacted=search.compacted,
        )
        batches = with_progress(
            opened, slices, batches, progress, opened.ranges_for(search.compacted)
        )
        if search.is_timed:
            batches = (one.filter(stored_in_time(one, *times)) for one in batches)
        batches = (one.select(read) for one in batches)
        count = BatchPrinter(form, progress).print(batches, limit)
    if not count:
        problem("no message found")
    return damage.conclude()


def _require_offset(store: StoreReader, search: Search, offset: int) -> None:
    """Raise for an offset that no queue has reached. A compacted queue may begin at any."""
    (topic,) = search.topics or ()
    view, chosen = store.ranges_for(search.compacted), search.queue_ids
    queues = [q for q in store.queues(topic) if chosen is None or q.queue_id in chosen]
    ends = {queue: view.limits(queue) for queue in queues}
    if ends and offset > max(high for _, high in ends.values()):
        ranges = (f"queue {queue.queue_id}: {low} to {high}" for queue, (low, high) in ends.items())
        raise InvalidArgumentError(
            store.path,
            reason=f"no queue of topic {topic!r} has come to offset {offset}",
            expected=", ".join(ranges),
            advice="The last number of each queue is the offset of its next message",
        )
    for queue, (low, _) in ends.items():
        if offset < low and view.is_in_log(queue):
            problem(
                f"queue {topic}/{queue.queue_id} begins at {low}: it has no message of offset {offset} "
                f"to {low - 1} any more"
            )


_IDS = ("keys", "uniqKey", "msgId")


@command
def find(
    at: StoreArgs = options.STORE,
    topics: tuple[str, ...] = options.TOPICS,
    queue_ids: tuple[int, ...] = options.QUEUES,
    keys: tuple[str, ...] = options.KEYS,
    message_id: str | None = option(
        "--id",
        type=options.nonempty_text,
        metavar="ID",
        help="Only messages with this offsetMsgId or UNIQ_KEY.",
    ),
    tags: str | None = options.TAGS,
    properties: tuple[str, ...] = option(
        "--property", multiple=True, metavar="NAME=VALUE", help="With this property."
    ),
    begin: Time | None = options.SINCE,
    end: Time | None = options.UNTIL,
    text: str | None = option(
        "--text",
        type=options.nonempty_text,
        metavar="TEXT",
        help="Only messages with this text in the body.",
    ),
    system: bool = options.SYSTEM,
    limit: int | None = options.LIMIT,
    explain: bool = flag("--explain", help="Show what the search reads, not the messages."),
    damage: SkippedDamage = DAMAGE,
    raw: bool = RAW,
    form: MessageForm = MESSAGE_FORM,
) -> bool:
    """Print the messages that match all given options. Exit code 1 if none match.

    STORE may be a pattern such as '/data/*/store': column brokerName names the store of a message.

    Examples:
        rmqstore find /data/store --key ORDER_1674
        rmqstore find /data/store --topic orders --tag shipped --since 2026-11-21
        # in all stores below /data
        rmqstore find '/data/*/store' --topic orders --text 'order 506'
    """
    from rmq_store.cli.batch_printer import BatchPrinter
    from rmq_store.search.find_messages import find as search_for
    from rmq_store.search.find_messages import find_by_id, why_not_found
    from rmq_store.search.selection import Search, property_of_text

    conditions = (topics, queue_ids, keys, tags, properties, begin, end, text)
    if message_id is not None and any(conditions):
        raise click.UsageError("--id names one message; leave out the other conditions")
    if not any((*conditions, message_id, limit)):
        raise click.UsageError(
            "find needs something to search for, such as --topic, --key or --since, or --limit N; "
            "cat prints a whole topic"
        )
    words = [*keys, *([] if message_id is None else [message_id])]
    # What a look-up cannot read says nothing of what it finds.
    on_damage = damage if damage.skips or words else None
    count, where, rows = 0, "", list[dict[str, Any]]()
    with damage, options.opened_stores(at) as stores, Progress("find") as progress:
        if len(stores) > 1 and form.columns is None and not form.as_json:
            form = replace(form, columns=f"brokerName,{TEXT_COLUMNS}")
        names = form.names()
        printer = BatchPrinter(form, progress, whole=_IDS if words else ())
        search = Search(
            list(topics) or None,
            queue_ids or None,
            *options.time_range(stores, begin, end),
            tags=tags,
            properties=dict(map(property_of_text, properties)),
            text=None if text is None else _in_charset(text, form.charset),
            include_system_topics=system,
            keys=keys,
            unwrap_batches=not raw,
        )
        all_topics = set[str]().union(*(store.view.topics.every for store in stores))
        for store in stores:
            # A topic of another store is searched there; the search refuses one that no store has.
            in_store = store.view.topics.every
            named_here = [topic for topic in topics if topic in in_store or topic not in all_topics]
            if topics and not named_here:
                continue
            batches = (
                search_for(
                    store, replace(search, topics=named_here or None), names, on_damage, progress
                )
                if message_id is None
                else find_by_id(store, message_id, names, on_damage, unwrap_batches=not raw)
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
            where += "".join(why_not_found(store, word, topics) for word in words)
    Output(form.as_json).rows(rows)
    if not count:
        several = f" in {len(stores)} stores" if len(stores) > 1 else ""
        problem(f"no message found{several}{where}")
    if damage.conclude() and not damage.skips and not count:
        raise click.exceptions.Exit(EXIT_FAILED)
    return not count or damage.count > 0


def _explained(
    store: StoreReader, batches: Iterable[pa.RecordBatch], limit: int | None
) -> dict[str, Any]:
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
    try:
        return text.encode(charset or "utf-8")
    except UnicodeEncodeError:
        raise click.UsageError(
            f"{text!r} cannot be written in charset {charset or 'utf-8'}"
        ) from None


def _id_leads_to(store: StoreReader, message_id: str | None) -> str:
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


_MOST_LISTED = 10  # unreadable places that are listed one by one


@command
def trace(
    at: StoreArgs = options.STORE,
    key: str = argument(type=options.nonempty_text),
    topic: str | None = options.TOPIC.but(help="Only messages that were sent to this topic."),
    out: Output = OUTPUT,
) -> bool:
    """Show the history of the messages with a KEY (a word of KEYS, a UNIQ_KEY or an offsetMsgId):
    stored, delayed, retried, dead, prepared, committed or rolled back. Exit code 1 if there are
    none, or if damaged records were left out.

    Examples:
        rmqstore trace /data/store ORDER_1674
        rmqstore trace /data/store ORDER_1674 --topic retrying
    """
    from rmq_store.questions.trace import trace as lives_of
    from rmq_store.search.find_messages import why_not_found
    from rmq_store.search.message_history import one_error_a_place
    from rmq_store.search.selection import require_topic

    with at.open() as opened:
        if topic is not None:
            require_topic(opened, topic)
        with Progress("trace") as progress:
            lives = lives_of(opened, key, topic, progress)
        gone = "" if lives else why_not_found(opened, key)
    for life in lives:
        _print_life(life, out)
    damage = one_error_a_place(*(error for life in lives for error in life.damage))
    for error in damage[:_MOST_LISTED]:
        problem(f"left out: {error}")
    if len(damage) > _MOST_LISTED:
        problem(f"{counted(len(damage), 'place')} cannot be read; see `verify`")
    if not lives:
        reason = f"no message has the key {key!r}"
        if topic is not None:
            reason = f"no message with the key {key!r} was sent to topic {topic!r}"
        problem(f"{reason}{gone}")
    return bool(damage) or not lives


def _print_life(life: MessageHistory, out: Output) -> None:
    of_life = {
        "transaction": life.transaction,
        "damage": [str(error) for error in life.damage],
        "consumers": [_in_json(asdict(c), "written", "invisibleUntil") for c in life.consumers],
        "reports": [_in_json(dict(report), "timestamp") for report in life.reports],
    }
    if not out.as_json:
        print_line(f"message {life.uniqKey or life.steps[0].msgId}: {life.outcome}")
    for step in life.steps:
        place = ", in no queue" if step.queueOffset is None else f"@{step.queueOffset}"
        text = f"{step.topic}/{step.queueId}{place}"
        row = _in_json(asdict(step), "storeTimestamp") | of_life
        out.record(row, [_line(step.storeTimestamp, step.step, text, step.about)])
    if out.as_json:
        return
    for report in life.reports:
        text, at = f"group {report.get('groupName') or 'not known'}", report.get("timestamp")
        print_line(_line(at, str(report["traceType"]), text, report["outcome"]))
    for consumer in life.consumers:
        text = f"group {consumer.consumerGroup}"
        print_line(_line(None, consumer.state, text, _about_consumer(consumer)))


def _about_consumer(consumer: GroupOutcome) -> str | None:
    if consumer.state == "popped":
        until = consumer.invisibleUntil
        return "not acknowledged" + (f", invisible until {shown_time(until)}" if until else "")
    is_unknown = consumer.state == "unknown"
    if consumer.state == "dead" or (is_unknown and consumer.offset is None):
        return None
    when = "" if consumer.written is None else f" at {shown_time(consumer.written)}"
    offset = "none" if consumer.offset is None else consumer.offset
    end = ", after the end of the queue" if is_unknown else ""
    return f"its offset in {consumer.topic}/{consumer.queueId} was {offset}{when}{end}"


def _line(time: int | None, what: str, text: str, about: str | None) -> str:
    """A line of a history; `time` in ms."""
    shown = "" if time is None else shown_time(time)
    return f"  {shown:<24}  {what:<12}{text}" + (f"  ({about})" if about else "")


def _in_json(row: dict[str, Any], *times: str) -> dict[str, Any]:
    """A row with its times, in ms, as texts."""
    shown = {name: row.get(name) for name in times}
    return row | {name: None if at is None else shown_time(at) for name, at in shown.items()}
