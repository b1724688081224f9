"""Sections of a report: how far consumer groups are behind, what retention takes from them, what the broker
is still to deliver, and what consumers gave up."""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from matplotlib.ticker import MaxNLocator

from rmq_store.admin.retention import RetentionPlan, RetentionPolicy, plan_retention
from rmq_store.config.consumer_offsets import CONSUMER_FILES, committed_offsets, read_delay_offsets
from rmq_store.config.json_files import config_names
from rmq_store.format.byte_layout import CONFIG_DIR
from rmq_store.format.topics import (
    DLQ_PREFIX,
    OP_TOPICS,
    RESERVED_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    is_group_of_broker,
)
from rmq_store.questions.dead_letters import dead_letters as dead_letters_in
from rmq_store.questions.dead_letters import dead_ranges
from rmq_store.questions.lag_summary import LagAnswer, lag_of
from rmq_store.report.plots import COLOURS, draw_bars, shown_name
from rmq_store.report.section import (
    Command,
    Grid,
    Inquiry,
    LeftOutSection,
    Plot,
    Remark,
    ReportCell,
    Section,
    columns_of_rows,
    sentence_of_rest,
    text,
)
from rmq_store.search.log_partitions import COUNTED
from rmq_store.system_topics.delayed_messages import OVERDUE
from rmq_store.system_topics.open_state import expired_unfinished
from rmq_store.system_topics.transactions import OPEN
from rmq_store.tables import TABLES
from rmq_store.text.sizes import size
from rmq_store.text.times import shown_time
from rmq_store.verify.findings import Severity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROWS = 50
_BEHIND = "consumerGroup topic lag lagBytes lagMs"
_LAG = "consumerGroup topic queues lag lagBytes lagMs notAcknowledged queuesWithLoss"
_LOST = "consumerGroup topic queues messages"
_SLOWEST = 5
_BARS = 10
_LONGEST = (16, 34)  # characters of a name in a plot, narrow and wide
_LEAST_COUNTED = 1000  # messages: to sample fewer takes longer than to count them


def lag(inquiry: Inquiry) -> Section:
    """How far each consumer group is behind (the answer of `rmqstore lag`)."""
    offsets = sum(1 for _ in committed_offsets(inquiry.store.path, inquiry.store.config.enableLmq))
    section = Section("lag", "Consumer groups", commands=[inquiry.command("lag")])
    if not offsets:
        names = " or ".join(f"{CONFIG_DIR}/{name}" for name in CONSUMER_FILES)
        there = not set(config_names(inquiry.store.path)).isdisjoint(CONSUMER_FILES)
        why = "is empty" if there else "is not there"
        return replace(section, about=f"No group has committed an offset: {names} {why}.")
    most = inquiry.bounds.offsets
    if offsets > most:
        reason = (
            f"groups have {offsets:,} offsets, and a report reads {most:,}; "
            "rmqstore report --all reads all"
        )
        missing = LeftOutSection(reason, inquiry.command("lag"), bounded=True)
        return replace(section, unseen=[reason], missing=missing)
    counted = min(COUNTED, max(_LEAST_COUNTED, inquiry.bounds.entries // offsets))
    answer = lag_of(inquiry.store, read_whole=counted)
    rows = answer.by_group()
    behind = [row for row in rows if row["lag"] != 0]
    estimated = any((row.get("lag") or 0) > counted for row in answer.rows)
    note = f"The bytes of more than {counted:,} messages of a queue are estimated from samples."
    more = sentence_of_rest(len(rows), _ROWS, "more, less far behind,")
    return replace(
        section,
        about="By the broker's offset files, which miss what was consumed since they were written. "
        "The time is that from the first unconsumed message to the newest of its queue.",
        plots=[_lag_plot(behind)] if behind else [],
        grids=[
            columns_of_rows("lag-by-group", "Lag by group and topic", _LAG, rows[:_ROWS], more),
            *_slowest(inquiry, _users_behind(rows)),
        ],
        remarks=list(_remarks(inquiry, answer, rows)),
        unseen=[note] if estimated else [],
    )


def _slowest(inquiry: Inquiry, users: Sequence[dict[str, Any]]) -> Iterator[Grid]:
    """The groups with the largest lag in messages, bytes and time."""
    measures = (("messages", "lag"), ("bytes", "lagBytes"), ("time", "lagMs"))
    for what, name in measures if users else ():
        rows = sorted(users, key=lambda row: -(row[name] or 0))[:_SLOWEST]
        look = partial(_look, inquiry)
        yield columns_of_rows(f"slowest-{what}", f"Slowest by {what}", _BEHIND, rows, command=look)


def _look(inquiry: Inquiry, row: dict[str, Any]) -> Command:
    return inquiry.command("lag", "--group", row["consumerGroup"], "--topic", row["topic"])


def _lag_plot(behind: Sequence[dict[str, Any]]) -> Plot:
    shown = behind[:_BARS]

    def draw(axes: Axes, narrow: bool) -> None:
        longest = _LONGEST[not narrow]
        names = [shown_name(f"{row['consumerGroup']}, {row['topic']}", longest) for row in shown]
        lags = [row["lag"] or 0 for row in shown]
        labels = [f"{lag:,}" for lag in lags] if narrow else [*map(_behind, shown)]
        draw_bars(axes, names, lags, labels, COLOURS[:1])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.xaxis.set_major_locator(MaxNLocator(3 if narrow else 7, integer=True))
        axes.set_xlabel("messages not consumed")

    return Plot("plot-lag", "Lag by group and topic, in messages", draw, 0.9 + 0.3 * len(shown))


def _behind(row: dict[str, Any]) -> str:
    if row["lag"] is None:
        return "not known"
    messages = f"{row['lag']:,} messages"
    return messages if row["lagBytes"] is None else f"{messages}, {size(row['lagBytes'])}"


def _remarks(
    inquiry: Inquiry, answer: LagAnswer, rows: Sequence[dict[str, Any]]
) -> Iterator[Remark]:
    """Losses, who is the furthest behind, and what was popped; the broker's own groups are not behind."""
    for row, sentence in answer.losses():
        yield Remark(Severity.ERROR, sentence, _look(inquiry, row))
    for row in _users_behind(rows)[:1]:
        of_row = f"group {row['consumerGroup']} is the furthest behind in topic {row['topic']}"
        yield Remark(Severity.NOTE, f"{of_row}: {_behind(row)}", _look(inquiry, row))
    for row in rows:
        if row["notAcknowledged"]:
            yield Remark(
                Severity.NOTE,
                f"group {row['consumerGroup']} popped {row['notAcknowledged']:,} messages of topic "
                f"{row['topic']} and has not acknowledged them: they come again",
                inquiry.command("pop", "--group", row["consumerGroup"], "--topic", row["topic"]),
            )


def _users_behind(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["lag"] != 0 and not is_group_of_broker(row["consumerGroup"])]


def retention(inquiry: Inquiry) -> Section:
    """What the broker deletes now, else what it deletes next, and from which groups."""
    store, rules = inquiry.store, RetentionPolicy.of(inquiry.store.config)
    section = Section("retention", "What retention takes", commands=[inquiry.command("retention")])
    said = (
        f"fileReservedTime={rules.fileReservedTime} h, deleteWhen={rules.deleteWhen}, "
        f"diskMaxUsedSpaceRatio={rules.diskMaxUsedSpaceRatio}"
    )
    if store.config.fileReservedTime is None:
        said += " (the broker's defaults: give --broker-conf for others)"
    plan = plan_retention(store, rules, now_ms=inquiry.now_ms)
    if plan.log:
        when = f"now ({plan.trigger})"
        return replace(section, about=_retention_text(plan, when, said), **_of_plan(inquiry, plan))
    may_go = store.log.files_that_may_go(store.log_range()[1])
    if not may_go:
        about = f"Nothing is due, and the broker never deletes its last log file. {said}."
        return replace(section, about=about)
    due = rules.expires_at(os.stat(may_go[0].path).st_mtime_ns // 1_000_000)
    at_any_hour = replace(rules, deleteWhen=";".join(map(str, range(24))))
    plan = plan_retention(store, at_any_hour, now_ms=due + 1, disk_used_percent=0)
    when = f"in the first hour of deleteWhen after {shown_time(due)}, or when the disk is too full"
    about = f"Nothing is due now. {_retention_text(plan, when, said)}"
    return replace(section, about=about, **_of_plan(inquiry, plan, is_next=True))


def _retention_text(plan: RetentionPlan, when: str, said: str) -> str:
    files = (*plan.log, *plan.queues, *plan.index)
    return (
        f"{len(files):,} files with {size(plan.bytes)} go {when}: the log then starts at "
        f"{plan.log_start_after:,}. {said}."
    )


def _of_plan(inquiry: Inquiry, plan: RetentionPlan, *, is_next: bool = False) -> dict[str, Any]:
    lost: dict[tuple[str, str], list[int]] = {}
    for risk in plan.risks:
        queues, messages = lost.get((risk.group, risk.topic), (0, 0))
        lost[risk.group, risk.topic] = [queues + 1, messages + risk.messages]
    shown = inquiry.command("retention")
    if plan.risks and is_next:
        first_left = inquiry.store.log.store_time_at(plan.log_start_after)
        if first_left is not None:
            shown = inquiry.command("retention", "--keep-from", shown_time(first_left + 1))
    rows = [
        dict(zip(_LOST.split(), (*of, *counts), strict=True))
        for of, counts in sorted(lost.items(), key=lambda item: (-item[1][1], item[0]))
    ]
    remarks = [
        Remark(
            Severity.WARNING,
            f"group {row['consumerGroup']} loses {row['messages']:,} unread messages of topic "
            f"{row['topic']} when retention deletes the next files",
            shown,
        )
        for row in rows
    ]
    grid = columns_of_rows(
        *("retention-by-group", "Groups that lose unread messages", _LOST, rows[:_ROWS]),
        sentence_of_rest(len(rows), _ROWS),
        lambda row: inquiry.command(
            "offsets", "--group", row["consumerGroup"], "--topic", row["topic"]
        ),
    )
    return {"grids": [grid] if rows else [], "remarks": remarks}


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
    unlisted = sentence_of_rest(states.total(), _LISTED)
    grid = columns_of_rows(
        "scheduled-messages", "", _SCHEDULED, rows, unlisted, partial(_trace, inquiry)
    )
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
    unlisted = sentence_of_rest(states[OPEN], _LISTED)
    trace = partial(_trace, inquiry)
    grid = columns_of_rows("open-transactions", "Open transactions", _OPEN, rows, unlisted, trace)
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
    ranges = [slice_ for slice_ in dead_ranges(store) if len(slice_)]
    if not ranges:
        return replace(section, about="No group gave up a message.")
    most = max(1, inquiry.bounds.held // len(ranges))
    newest = tuple(slice_.cut(slice_.stop - most, slice_.stop) for slice_ in ranges)
    every, read = sum(map(len, ranges)), sum(map(len, newest))
    answer = dead_letters_in(store, newest, top=_LISTED)
    trace, more = partial(_trace, inquiry), sentence_of_rest(read, _LISTED)
    groups = columns_of_rows(
        *("dead-letters-by-group", "By group and topic", _DEAD_BY_GROUP, answer.groups[:50]),
        command=lambda row: inquiry.command("dlq", "--group", row["consumerGroup"]),
    )
    letters = columns_of_rows(
        "dead-letters-newest", "The newest", _DEAD, answer.newest, more, trace
    )
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
    unlisted, trace = sentence_of_rest(groups.total(), _LISTED), partial(_trace, inquiry)
    return replace(
        section,
        about=f"{groups.total():,} messages that consumer groups sent back.",
        grids=[
            columns_of_rows(
                *("retries-by-group", "By group", "consumerGroup messages", by_group),
                command=lambda row: inquiry.command("retries", "--group", row["consumerGroup"]),
            ),
            columns_of_rows("retries-newest", "The newest", _RETRIES, rows, unlisted, trace),
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


def _trace(inquiry: Inquiry, row: Row) -> ReportCell:
    """The command that shows the history of a message; empty without a key."""
    key = row.get("uniqKey") or row.get("msgId") or row.get("originMsgId")
    # With a hyphen in front it would be an option.
    return text(None) if not key or key.startswith("-") else inquiry.command("trace", key)
