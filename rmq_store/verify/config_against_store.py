"""Check checkpoint, configuration and consumer offsets against the log and the queues."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import islice

from rmq_store.config.broker_conf import STORE_TYPES
from rmq_store.config.consumer_offsets import (
    CONSUMER_FILES,
    DELAY_FILE,
    POPPED,
    committed_offsets,
    has_consumer_offsets,
    pulled_and_popped_offsets,
    read_delay_file,
)
from rmq_store.config.json_files import config_names, read_config, undecoded
from rmq_store.config.rocksdb import GROUPS_FILE, has_queue_files, rocksdb_queues
from rmq_store.config.topics_json import TOPICS_FILE, perm_allows_read, read_queue_count
from rmq_store.config.without_file import effect_without
from rmq_store.errors import CorruptConfigError, StoreError, UnsupportedStoreError
from rmq_store.format.byte_layout import ABORT_FILE, CHECKPOINT_FILE, CONFIG_DIR, TIMER_CHECK
from rmq_store.format.queues import QueueId
from rmq_store.format.record import decode_properties
from rmq_store.format.topics import (
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_GROUP,
    is_group_of_broker,
    is_system_topic,
)
from rmq_store.markers import Checkpoint, read_timer_check
from rmq_store.reading.store_reader import StoreReader
from rmq_store.recovery.recover_store import DECODED
from rmq_store.system_topics.delayed_messages import is_due_after_log, timers_due_after_log
from rmq_store.system_topics.open_state import expired_unfinished
from rmq_store.system_topics.state_database import timers_in_database, transactions_in_database
from rmq_store.text.sizes import counted
from rmq_store.text.times import shown_time
from rmq_store.verify.findings import Finding, a_note, a_warning, an_error

_ON_AHEAD = (
    "If the log has messages of this queue that it does not list, which is reported too, rebuild the queues "
    "first: with them the offset may be right, and a reset does harm. On a slave, wait until it has caught "
    "up. Else rmqstore offsets resets a group while the broker is down"
)
_LOST_END = "Search for the missing end in a replica or a copy before a broker starts on this store"
_CHECKPOINT = f"Move it away: a broker without it {effect_without(CHECKPOINT_FILE)}"
_MESSAGES_LOOKED_AT = 128
# SendMessageProcessor since 4.4.0, and what consumers sent back.
_OF_BROKER = {"CLUSTER", "ORIGIN_MESSAGE_ID"}
_NORMAL = {
    CONSUMER_FILES[0]: ". Normal if no group has ever committed an offset",
    DELAY_FILE: ". Normal if none has been delivered",
}
_BACKUP_USED = (
    "It is older: what was written after it is missing. A broker that cannot read the file uses "
    "it too when it starts. Restore the file from a copy, or accept the .bak"
)
_SENT = "the end of the queue is lost, or the topic was created again"
_SENT_ADVICE = (
    "No broker goes on from this offset, but search for the lost end in a replica or a copy before one "
    "starts"
)
_GIVEN = "what consumers acknowledge of the lost ones may count for new messages"
_GIVEN_ADVICE = (
    "Before a broker starts, restore the lost end of the log, or move the file and its .bak away: the "
    "broker then gives out again what the group has not consumed by its committed offset"
)
_LISTED = 10  # queues that a finding names


def start_findings(store: StoreReader, records: int, last_timestamp: int) -> Iterator[Finding]:
    """Findings of what a broker's start goes by: `abort`, and the checkpoint, compared with a log of
    `records` records, the last one stored at `last_timestamp` (ms)."""
    path = store.path / ABORT_FILE
    if path.exists():
        yield a_note(
            "not-closed",
            str(path),
            "a broker has the store open, or did not close it cleanly",
            "If no broker runs, the next start recovers the store",
        )
    path = store.path / CHECKPOINT_FILE
    try:
        checkpoint = Checkpoint.read(path)
    except StoreError as error:
        # A checkpoint without read permission may be intact, so the advice is not to move it away.
        todo = _CHECKPOINT if isinstance(error, CorruptConfigError) else error.advice or _CHECKPOINT
        yield a_warning("checkpoint-unreadable", str(path), error.reason, todo)
        return
    if checkpoint is None:
        if records:
            yield a_note(
                "checkpoint-absent",
                str(path),
                "there is no checkpoint",
                f"A broker {effect_without(CHECKPOINT_FILE)}",
            )
        return
    end, newest, unless = store.log_range()[1], checkpoint.newest_timestamp, ""
    if records and checkpoint.logics_physical_offset >= end:
        said = (
            f"the queues list the record at log offset {checkpoint.logics_physical_offset}, "
            f"but the log ends at {end}: the end of the log"
        )
    # If there are log files, their messages may have expired. If there are none, the log is lost.
    elif newest > last_timestamp and (records or not store.log.chain.segments):
        said = f"messages up to {shown_time(newest)} were on the disk, but " + (
            f"the last one in the log is from {shown_time(last_timestamp)}: the end of the log"
            if records
            else "the log has none: the log"
        )
        unless = ", unless a clock was set back" if records else ""
    else:
        return
    yield an_error("checkpoint-ahead", str(path), f"it says that {said} is lost{unless}", _LOST_END)


def is_of_other_store_type(store: StoreReader) -> bool:
    """Whether the broker of this configuration keeps its queues where the store has none."""
    in_database = store.config.queues_in_database
    if in_database is None or not store.queues():
        return False
    has_database = rocksdb_queues(store.path) is not None
    return not has_database if in_database else has_database and not has_queue_files(store.path)


def _other_store_type(store: StoreReader) -> Iterator[Finding]:
    if is_of_other_store_type(store):
        kind, other = STORE_TYPES[:: -1 if store.config.queues_in_database else 1]
        yield a_warning(
            "config-store-type",
            str(store.path),
            f"the queues are those of storeType={other}, and broker.conf has storeType={kind}: such a "
            "broker of 5.4.0 or later lists the messages of the newest ten log files alone",
            f"rmqstore rebuild STORE --to NEW --store-type {kind} makes the queues that it reads",
        )


def config_findings(store: StoreReader) -> Iterator[Finding]:
    """Findings for files in config/ that cannot be read, and for those whose .bak was read instead."""
    yield from _other_store_type(store)
    try:
        names = config_names(store.path)
    except CorruptConfigError as error:
        yield _unreadable(error, store)
        return
    yield from _missing_files(store, names)
    for name in names:
        try:
            file = read_config(store.path, name, DECODED.get(name, undecoded))
        except CorruptConfigError as error:
            yield _unreadable(error, store)
            continue
        if file is None:
            continue
        path, doubt = str(file.path), file.doubt
        if file.problem is not None:
            yield a_warning("config-backup-used", path, file.problem, _BACKUP_USED)
        if doubt is not None:
            yield a_warning(doubt.code, path, doubt.meaning, doubt.advice)
    said: set[str | None] = set()
    for read in (read_timer_check, timers_in_database, transactions_in_database):
        try:
            read(store.path)
        except (CorruptConfigError, UnsupportedStoreError) as error:
            if error.path not in said and isinstance(error, CorruptConfigError):
                yield _unreadable(error, store)
            elif error.path not in said:
                yield a_note("state-not-read", error.path or "", error.reason, error.advice or "")
            said.add(error.path)


def _missing_files(store: StoreReader, names: Collection[str]) -> Iterator[Finding]:
    """Findings for files that the broker had, by others of its files, and that are gone with their .bak."""
    taken = None if names else broker_message_offset(store)
    if taken is not None:
        proof = f"the message at log offset {taken} came through a broker, which had some"
        yield _missing(store, None, proof, TOPICS_FILE, CONSUMER_FILES[0])
    if TOPICS_FILE not in names and names and store.queues():
        yield _missing(store, TOPICS_FILE, "other files of the broker are")
    groups = [topic for topic in store.view.topics.every if topic.startswith(RETRY_PREFIX)]
    # Without the file of groups no broker has run here, as where a store was salvaged.
    if groups and GROUPS_FILE in names and not has_consumer_offsets(store.path):
        yield _missing(store, CONSUMER_FILES[0], f"a group has the topic {groups[0]}")
    if GROUPS_FILE in names and DELAY_FILE not in names and _count_delayed(store):
        yield _missing(store, DELAY_FILE, f"{SCHEDULE_TOPIC} has messages")


def _missing(store: StoreReader, name: str | None, proof: str, *others: str) -> Finding:
    """A finding for a file that is gone; None: for all, of which `others` are named."""
    folder = store.path / CONFIG_DIR
    which = "no file is there" if name is None else "neither the file nor its .bak is there"
    what = "them" if name is None else "the file"
    effects = ", and ".join(map(effect_without, others if name is None else (name,)))
    return a_warning(
        "config-missing",
        str(folder if name is None else folder / name),
        f"{which}, although {proof}: a broker {effects}{_count_delayed(store) if name == DELAY_FILE else ''}",
        f"Restore {what} from a copy or a replica before a broker starts, which writes a new one"
        + _NORMAL.get(name or "", ""),
    )


def was_without_config(store: StoreReader) -> bool:
    """Whether config/ has no file, and no message shows that a broker with some wrote the store."""
    return not config_names(store.path) and broker_message_offset(store) is None


def broker_message_offset(store: StoreReader) -> int | None:
    """The log offset of a message with a property that only a broker sets, at the ends of queues.

    A log may also be written by the broker's store alone, without configuration.
    """
    own = (
        (q, at)
        for q, state in store.snapshot().queues.items()
        if q.topic.startswith(RETRY_PREFIX) or not is_system_topic(q.topic)
        for at in (state.max_offset - 1, state.min_offset)  # one may be of a batch
        if state.min_offset < state.max_offset
    )
    for queue, at in islice(own, _MESSAGES_LOOKED_AT):
        with suppress(StoreError):
            place = store.view.log_offset_of(queue, at)
            if not _OF_BROKER.isdisjoint(decode_properties(store.log.record_at(place).properties)):
                return place
    return None


def _unreadable(error: CorruptConfigError, store: StoreReader) -> Finding:
    path, todo = error.path or CONFIG_DIR, error.advice or "Restore a copy"
    if os.path.basename(path).removesuffix(".bak") == DELAY_FILE:
        todo += _count_delayed(store)
    return an_error("config-unreadable", path, error.reason, todo)


def _count_delayed(store: StoreReader) -> str:
    """How many messages a broker may deliver again without delayOffset.json."""
    queues = store.view.queues_of(SCHEDULE_TOPIC)
    count = sum(store.max_offset(*queue) - store.min_offset(*queue) for queue in queues)
    return f". It has {counted(count, 'delayed message')}" if count else ""


def progress_findings(
    store: StoreReader, listed: Collection[QueueId] | None = None
) -> Iterator[Finding]:
    """Findings for what files say was consumed or delivered and the queues do not have, and for
    messages that no consumer gets.

    `listed`: the queues that list a record of their own, if that is known.
    """
    for findings in (_consumers, _sent, _delay_levels, _timer, _expired):
        with suppress(CorruptConfigError):  # config_findings reports it
            yield from findings(store)
    yield from _unread(store, listed)


def _consumers(store: StoreReader) -> Iterator[Finding]:
    """Findings for groups whose offset is outside the range of their queue."""
    for _, name, group, queue, offset in committed_offsets(store.path, store.config.enableLmq):
        limits = _range_of(store, queue)
        if limits is None or offset < 0 or limits[0] <= offset <= limits[1]:  # below 0 is none
            continue
        if group == TRANSACTION_GROUP and offset < limits[0]:
            continue  # most of them have ended: `expired_unfinished` has the others
        low, high = limits
        ahead = offset > high
        yield a_warning(
            "consumer-ahead" if ahead else "consumer-behind",
            str(store.path / CONFIG_DIR / name),
            f"group {group} has offset {offset} in {queue.name}, which has offsets "
            f"{low} to {high}" + (": it may skip new messages" if ahead else ": it lost messages"),
            _ON_AHEAD if ahead else "The broker moves it to the first remaining message",
        )


def _range_of(store: StoreReader, queue: QueueId) -> tuple[int, int] | None:
    """Min and max offset of a queue; None if its topic was deleted."""
    state = store.snapshot().queues.get(queue)
    if state is None:
        return (0, 0) if queue.topic in store.view.topics.declared else None
    return state.min_offset, state.max_offset


def _sent(store: StoreReader) -> Iterator[Finding]:
    """Findings for groups that were sent messages after the end of their queue.

    Before its first offset may be what has expired meanwhile.
    """
    for kind, name, group, queue, offset in pulled_and_popped_offsets(
        store.path, store.config.enableLmq
    ):
        limits = _range_of(store, queue)
        if limits is None or offset <= limits[1]:
            continue
        popped = kind == POPPED
        yield a_warning(
            "pop-ahead" if popped else "pull-ahead",
            str(store.path / CONFIG_DIR / name),
            f"group {group} was {'given' if popped else 'sent'} messages to offset {offset} of "
            f"{queue.name}, which has offsets {limits[0]} to {limits[1]}: "
            + (_GIVEN if popped else _SENT),
            _GIVEN_ADVICE if popped else _SENT_ADVICE,
        )


def _delay_levels(store: StoreReader) -> Iterator[Finding]:
    """Findings for delay levels that are delivered further than their queue, or the log, goes."""
    file = read_delay_file(store.path)
    if file is None:
        return
    for queue_id, offset in file.value.items():
        queue = QueueId(SCHEDULE_TOPIC, queue_id)
        state = store.snapshot().queues.get(queue)
        high = 0 if state is None else state.max_offset
        why = f"which has offsets to {high}" if offset > high else ""
        has_before = state is not None and state.min_offset < offset <= high
        if has_before and is_due_after_log(store, queue, offset - 1):
            why = "whose message before is due later than the newest record of the log"
        if why:
            yield a_warning(
                "delay-ahead",
                str(file.path),
                f"delay level {queue_id + 1} is delivered to offset {offset} of {SCHEDULE_TOPIC}/{queue_id}, "
                f"{why}: the broker goes on there and does not deliver what it has not delivered before",
                "Before a broker starts, restore the lost end of the log, or set the level back in this file",
            )


def _timer(store: StoreReader) -> Iterator[Finding]:
    """Findings for a timer that has read its topic further than it goes, or has delivered what the log
    does not have."""
    check, path = read_timer_check(store.path), str(store.path / CONFIG_DIR / TIMER_CHECK)
    if check is None:
        return
    states = store.snapshot().queues.items()
    ends = (state.max_offset for queue, state in states if queue.topic == TIMER_TOPIC)
    high = max(ends, default=0)
    if check.queue_offset > high:
        yield a_warning(
            "timer-ahead",
            path,
            f"the timer has read {TIMER_TOPIC} to offset {check.queue_offset}, and the topic has offsets "
            f"to {high}: the timer may skip new messages",
            "Restore the lost end of the topic before a broker starts. Without the file the timer reads the "
            f"topic again, and the broker {effect_without(TIMER_CHECK)}",
        )
    undelivered = timers_due_after_log(store)
    if undelivered:
        yield a_warning(
            "timer-ahead",
            path,
            f"the timer has delivered what is due before {shown_time(check.read_time)}, and {undelivered} "
            "messages are due before that and after the newest record of the log: the broker does not "
            "deliver them",
            "Before a broker starts, restore the lost end of the log, or set the time back in this file",
            count=undelivered,
        )


def _expired(store: StoreReader) -> Iterator[Finding]:
    """Findings for delayed and timer messages that expired before they were delivered."""
    for expired in expired_unfinished(store):
        yield a_warning(
            expired.code,
            str(store.path / CONFIG_DIR / expired.file),
            str(expired),
            "Search for the older files of the log in a copy or a replica: rmqstore replay copies messages "
            "from there. Keep the log for longer than messages are delayed (fileReservedTime)",
            count=expired.messages,
        )


def _unread(store: StoreReader, listed: Collection[QueueId] | None) -> Iterator[Finding]:
    """Findings for topics with messages in queues that no consumer reads, or that no broker knows."""
    unread: dict[str, list[tuple[int, int]]] = {}
    for queue, state in store.snapshot().queues.items():
        count = state.max_offset - state.min_offset
        if not count or store.view.topics.is_read(queue):
            continue
        if listed is not None and queue not in listed:
            continue  # a folder under a wrong name is no topic
        unread.setdefault(queue.topic, []).append((queue.queue_id, count))
    for topic, queues in unread.items():
        if store.view.topics.is_undeclared(topic) and not store.is_undeclared(topic):
            continue  # named after this broker or its cluster, which creates it
        numbers = ", ".join(str(number) for number, _ in queues[:_LISTED])
        more = "" if len(queues) <= _LISTED else f" and {len(queues) - _LISTED} more"
        total = sum(count for _, count in queues)
        why, todo = _why_unread(store, topic, max(queues)[0] + 1)
        kind, got = a_warning, "no consumer gets them"
        if _are_consumed(store, topic, [number for number, _ in queues]):
            kind, got = (
                a_note,
                "the groups with offsets there have consumed them, and no other gets them",
            )
            todo = "Nothing, unless another group is to consume them"
        yield kind(
            "queue-not-read",
            str(store.path / CONFIG_DIR / TOPICS_FILE),
            f"topic {topic} {why}, and {total} messages in its queues {numbers}{more}: {got}",
            todo,
            count=total,
        )


def _are_consumed(store: StoreReader, topic: str, queue_ids: Collection[int]) -> bool:
    """Whether groups have offsets in a topic, and all of them are at the ends of these queues."""
    tables: list[Mapping[int, int]] = []
    with suppress(CorruptConfigError):
        groups = store.consumer_offsets().items()
        users = (topics for group, topics in groups if not is_group_of_broker(group))
        tables = [topics[topic] for topics in users if topic in topics]
    ends = {number: store.max_offset(topic, number) for number in queue_ids}
    return bool(tables) and all(
        table.get(number, 0) == end for table in tables for number, end in ends.items()
    )


def _why_unread(store: StoreReader, topic: str, queues: int) -> tuple[str, str]:
    """Why no consumer reads a topic with so many queues, and what to do."""
    if store.is_undeclared(topic):
        return "is not in this file", (
            f"Create it with {queues} queues before a producer does with fewer (mqadmin updateTopic), or "
            "copy them: rmqstore replay. mqadmin cleanUnusedTopic deletes its queues. Normal if the topic "
            "was deleted, and a recovery listed its messages again"
        )
    settings = store.view.topics.declared.get(topic, {})
    if perm_allows_read(settings):
        why, todo = f"readQueueNums {read_queue_count(settings)}", f"readQueueNums to {queues}"
    else:
        why, todo = f"perm {settings['perm']}, without 4 (read)", f"perm to {settings['perm'] | 4}"
    return f"has {why}", f"Set {todo} until they are consumed, or copy them: rmqstore replay"
