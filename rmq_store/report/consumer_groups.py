"""Sections of a report: how far consumer groups are behind, and what retention takes from them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from matplotlib.ticker import MaxNLocator

from rmq_store.admin.retention import RetentionPlan, RetentionPolicy, plan_retention
from rmq_store.config.consumer_offsets import CONSUMER_FILES, committed_offsets
from rmq_store.config.json_files import config_names
from rmq_store.format.byte_layout import CONFIG_DIR
from rmq_store.format.topics import is_group_of_broker
from rmq_store.questions.lag_summary import LagAnswer, lag_of
from rmq_store.report.plots import COLOURS, draw_bars, named
from rmq_store.report.report_scope import Inquiry
from rmq_store.report.section import (
    Command,
    Grid,
    LeftOutSection,
    Plot,
    Remark,
    Section,
    listing,
    not_listed,
)
from rmq_store.search.log_partitions import COUNTED
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
    offsets = sum(1 for _ in committed_offsets(inquiry.store.path))
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
    more = not_listed(len(rows), _ROWS, "more, less far behind,")
    return replace(
        section,
        about="By the broker's offset files, which miss what was consumed since they were written. "
        "The time is that from the first unconsumed message to the newest of its queue.",
        plots=[_lag_plot(behind)] if behind else [],
        grids=[
            listing("lag-by-group", "Lag by group and topic", _LAG, rows[:_ROWS], more),
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
        yield listing(f"slowest-{what}", f"Slowest by {what}", _BEHIND, rows, command=look)


def _look(inquiry: Inquiry, row: dict[str, Any]) -> Command:
    return inquiry.command("lag", "--group", row["consumerGroup"], "--topic", row["topic"])


def _lag_plot(behind: Sequence[dict[str, Any]]) -> Plot:
    shown = behind[:_BARS]

    def draw(axes: Axes, narrow: bool) -> None:
        longest = _LONGEST[not narrow]
        names = [named(f"{row['consumerGroup']}, {row['topic']}", longest) for row in shown]
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
    if not store.config.fileReservedTime:
        said += " (the broker's defaults: give --broker-conf for others)"
    plan = plan_retention(store, rules, now_ms=inquiry.now_ms)
    if plan.log:
        when = f"now ({plan.trigger})"
        return replace(section, about=_retention_text(plan, when, said), **_of_plan(inquiry, plan))
    segments = store.log.chain.segments
    if len(segments) < 2:
        about = f"Nothing is due, and the broker never deletes its last log file. {said}."
        return replace(section, about=about)
    due = rules.old_enough_from(os.stat(segments[0].path).st_mtime_ns // 1_000_000)
    plan = plan_retention(store, rules, manual=True, now_ms=due + 1, disk_used_percent=0)
    when = f"in the first hour of deleteWhen after {shown_time(due)}, or when the disk is too full"
    about = f"Nothing is due now. {_retention_text(plan, when, said)}"
    return replace(section, about=about, **_of_plan(inquiry, plan))


def _retention_text(plan: RetentionPlan, when: str, said: str) -> str:
    files = (*plan.log, *plan.queues, *plan.index)
    return (
        f"{len(files):,} files with {size(plan.bytes)} go {when}: the log then starts at "
        f"{plan.log_start_after:,}. {said}."
    )


def _of_plan(inquiry: Inquiry, plan: RetentionPlan) -> dict[str, Any]:
    lost: dict[tuple[str, str], list[int]] = {}
    for risk in plan.risks:
        queues, messages = lost.get((risk.group, risk.topic), (0, 0))
        lost[risk.group, risk.topic] = [queues + 1, messages + risk.messages]
    shown = inquiry.command("retention")
    if plan.risks and plan.trigger == "manual":
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
    grid = listing(
        *("retention-by-group", "Groups that lose unread messages", _LOST, rows[:_ROWS]),
        not_listed(len(rows), _ROWS),
        lambda row: inquiry.command(
            "offsets", "--group", row["consumerGroup"], "--topic", row["topic"]
        ),
    )
    return {"grids": [grid] if rows else [], "remarks": remarks}
