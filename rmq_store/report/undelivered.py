"""Sections of a report: what waits in the broker's own topics, and what consumers gave up."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from rmq_store.config.consumer_offsets import read_delay_offsets
from rmq_store.format.topics import (
    DLQ_PREFIX,
    OP_TOPICS,
    RESERVED_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from rmq_store.questions.dead_letters import dead_letters as dead_letters_in
from rmq_store.questions.dead_letters import dead_ranges
from rmq_store.report.report_scope import Inquiry
from rmq_store.report.section import (
    Cell,
    Command,
    LeftOutSection,
    Remark,
    Section,
    listing,
    not_listed,
    text,
)
from rmq_store.system_topics.delayed_messages import OVERDUE
from rmq_store.system_topics.open_state import expired_unfinished
from rmq_store.system_topics.transactions import OPEN
from rmq_store.tables import TABLES
from rmq_store.verify.findings import Severity

_LISTED = 20
_SCHEDULED = "state dueTimestamp overdueMs topic queueId kind delayLevel keys"
_OPEN = "sinceTimestamp openMs topic producerGroup checks keys"
_DEAD_BY_GROUP = "consumerGroup originTopic messages bytes first last"
_DEAD = "died consumerGroup originTopic reconsumeTimes keys why"
_RETRIES = "lastTimestamp consumerGroup originTopic reconsumeTimes deadLetterTimestamp keys"
_LATEST = 1 << 62

Row = Mapping[str, Any]


def scheduled(inquiry: Inquiry) -> Section:
    """Messages that the broker is to deliver later, overdue ones first."""
    section = Section("scheduled", "Scheduled messages", commands=[inquiry.command("scheduled")])
    delivered = read_delay_offsets(inquiry.store.path)
    waiting = inquiry.held((TIMER_TOPIC,)) + sum(
        max(0, part.stop - max(part.start, delivered.get(part.queue.queue_id, 0)))
        for part in inquiry.ranges((SCHEDULE_TOPIC,))
    )
    if too_many := _too_many(inquiry, waiting, inquiry.command("scheduled", "--state", OVERDUE)):
        return _left_out(section, too_many)
    rows, states, system = _sorted_rows(inquiry, "scheduled", _by_due)
    overdue = states[OVERDUE]
    others = f" {system:,} of the broker's own are left out." if system else ""
    lost = [
        Remark(Severity.WARNING, str(expired), inquiry.command("scheduled"))
        for expired in expired_unfinished(inquiry.store)
    ]
    if not states.total():
        return replace(section, about=f"None is waiting.{others}", remarks=lost)
    unlisted = not_listed(states.total(), _LISTED)
    grid = listing("scheduled-messages", "", _SCHEDULED, rows, unlisted, partial(_trace, inquiry))
    said = f"{overdue:,} scheduled messages were due before the newest record and are not delivered"
    look = inquiry.command("scheduled", "--state", OVERDUE)
    about = f"{_states(states)}. A message is overdue if it was due before the newest record of the log."
    return replace(
        section,
        about=about + others,
        grids=[grid],
        remarks=[*lost, *([Remark(Severity.WARNING, said, look)] if overdue else [])],
    )


def transactions(inquiry: Inquiry) -> Section:
    """Transactions that are open, the oldest first."""
    more = inquiry.command("transactions", "--state", OPEN)
    section = Section("transactions", "Transactions", commands=[more])
    if too_many := _too_many(inquiry, inquiry.held((*OP_TOPICS, *OP_TOPICS.values())), more):
        return _left_out(section, too_many)
    rows, states, _ = _sorted_rows(
        inquiry,
        "transactions",
        lambda row: (row["sinceTimestamp"],),
        lambda row: row["state"] == OPEN,
    )
    if not states.total():
        return replace(section, about="No half message is left.")
    unlisted = not_listed(states[OPEN], _LISTED)
    trace = partial(_trace, inquiry)
    grid = listing("open-transactions", "Open transactions", _OPEN, rows, unlisted, trace)
    said = f"{states[OPEN]:,} transactions are neither committed nor rolled back"
    return replace(
        section,
        about=f"{_states(states)}.",
        grids=[grid] if rows else [],
        remarks=[Remark(Severity.WARNING, said, more)] if states[OPEN] else [],
    )


def dead_letters(inquiry: Inquiry) -> Section:
    """Messages that consumer groups gave up: how many of which group, and the newest."""
    store = inquiry.store
    section = Section("dead-letters", "Dead letters", commands=[inquiry.command("dlq")])
    ranges = [part for part in dead_ranges(store) if len(part)]
    if not ranges:
        return replace(section, about="No group gave up a message.")
    most = max(1, inquiry.bounds.held // len(ranges))
    newest = tuple(part.cut(part.stop - most, part.stop) for part in ranges)
    every, read = sum(map(len, ranges)), sum(map(len, newest))
    answer = dead_letters_in(store, newest, top=_LISTED)
    trace, more = partial(_trace, inquiry), not_listed(read, _LISTED)
    groups = listing(
        *("dead-letters-by-group", "By group and topic", _DEAD_BY_GROUP, answer.groups[:50]),
        command=lambda row: inquiry.command("dlq", "--group", row["consumerGroup"]),
    )
    letters = listing("dead-letters-newest", "The newest", _DEAD, answer.newest, more, trace)
    said = f"consumer groups gave up {every:,} messages (dead letters)"
    unseen = f"Only the newest {read:,} of {every:,} dead letters were read."
    return replace(
        section,
        about=f"{every:,} messages that consumer groups gave up.",
        grids=[groups, letters],
        remarks=[Remark(Severity.WARNING, said, inquiry.command("dlq"))],
        unseen=[unseen] if read < every else [],
    )


def retries(inquiry: Inquiry) -> Section:
    """Messages that consumer groups sent back to be consumed again."""
    more = inquiry.command("retries")
    section = Section("retries", "Retries", commands=[more])
    names = inquiry.store.topics()
    topics = [topic for topic in names if topic.startswith((RETRY_PREFIX, DLQ_PREFIX))]
    if too_many := _too_many(inquiry, inquiry.held(topics), more, copies=False):
        return _left_out(section, too_many)
    groups: Counter[str] = Counter()

    def noted(row: Row) -> bool:
        groups[row["consumerGroup"]] += 1
        return True

    rows, _, _ = _sorted_rows(inquiry, "retries", lambda row: (-row["lastTimestamp"],), noted)
    if not rows:
        return replace(section, about="No group sent a message back.")
    by_group = [{"consumerGroup": group, "messages": n} for group, n in groups.most_common(50)]
    unlisted, trace = not_listed(groups.total(), _LISTED), partial(_trace, inquiry)
    return replace(
        section,
        about=f"{groups.total():,} messages that consumer groups sent back.",
        grids=[
            listing(
                *("retries-by-group", "By group", "consumerGroup messages", by_group),
                command=lambda row: inquiry.command("retries", "--group", row["consumerGroup"]),
            ),
            listing("retries-newest", "The newest", _RETRIES, rows, unlisted, trace),
        ],
    )


def _too_many(
    inquiry: Inquiry, messages: int, command: Command, *, copies: bool = True
) -> LeftOutSection | None:
    """`copies`: later copies of the messages are looked for, by their keys."""
    bounds, reason = inquiry.bounds, None
    if messages > bounds.held:
        reason = (
            f"the broker's topics hold {messages:,} such messages, and a report reads "
            f"{bounds.held:,}; rmqstore report --all reads all"
        )
    elif copies and messages and inquiry.bytes_without_index > bounds.bytes_without_index:
        reason = (
            f"{inquiry.bytes_without_index:,} bytes of the log have no index, and would be read to "
            "find what became of the messages; rmqstore report --all reads them"
        )
    return None if reason is None else LeftOutSection(reason, command, bounded=True)


def _left_out(section: Section, why: LeftOutSection) -> Section:
    return replace(section, missing=why, unseen=[why.reason])


Order = Callable[[Row], tuple[int, ...]]


def _by_due(row: Row) -> tuple[int, ...]:
    """Overdue first, the latest of them last; then by the time when they are due."""
    return (row["state"] != OVERDUE, row.get("dueTimestamp") or _LATEST)


def _sorted_rows(
    inquiry: Inquiry, name: str, order: Order, wanted: Callable[[Row], bool] = lambda row: True
) -> tuple[list[Row], Counter[str], int]:
    """The first rows in an order, how many of each state there are, and of the broker's own."""
    states: Counter[str] = Counter()
    system, ticks = 0, count()

    def users() -> Iterable[tuple[tuple[int, ...], int, Row]]:
        nonlocal system
        for row in TABLES[name].rows(inquiry.store):
            if str(row.get("topic")).startswith(RESERVED_PREFIX):
                system += 1
                continue
            states[row.get("state", "")] += 1
            if wanted(row):
                yield order(row), next(ticks), row

    return [row for _, _, row in heapq.nsmallest(_LISTED, users())], states, system


def _states(states: Counter[str]) -> str:
    return ", ".join(f"{number:,} {state}" for state, number in sorted(states.items()))


def _trace(inquiry: Inquiry, row: Row) -> Cell:
    """The command that shows the history of a message; empty without a key."""
    key = row.get("uniqKey") or row.get("msgId") or row.get("originMsgId")
    # With a hyphen in front it would be an option.
    return text(None) if not key or key.startswith("-") else inquiry.command("trace", key)
