"""Sections of a report: what fills the log, when it was stored, and the largest messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np

from rmq_store.questions.usage import message_rate
from rmq_store.report import plots
from rmq_store.report.plots import bytes_label, draw_bars, label_bytes, shown_name
from rmq_store.report.section import (
    LARGEST,
    Grid,
    Inquiry,
    Plot,
    Remark,
    ReportCell,
    Section,
    byte_count,
    columns_of_rows,
    number,
    sentence_of_rest,
    text,
)
from rmq_store.tables.queues import problem_of_times
from rmq_store.text.times import shown_duration
from rmq_store.verify.findings import Severity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BARS = 8  # topics in a plot
_ROWS = 50
_DAYS = 31
_LARGEST = "storeSize topic queueId queueOffset commitLogOffset"
_LONGEST = (18, 30)  # characters of a name in a plot, narrow and wide
_MUCH = 0.5  # of the log


def space(inquiry: Inquiry) -> Section:
    """What fills the log, by topic and by day (the answer of `rmqstore usage`)."""
    usage = inquiry.usage
    topics, days = usage.by("topic"), _by_day(inquiry)
    rest = usage.log_bytes - usage.bytes_in_queues
    most = inquiry.entries_of_a_queue
    about = "" if most is None else "about "
    estimated = (
        f"Bytes of a queue and day with more than {most or 0:,} messages are estimated from samples; the "
        f"store has {inquiry.messages:,} messages. rmqstore usage, or rmqstore report --all, adds them up."
    )
    unseen = [] if most is None else [estimated]
    if problem := problem_of_times(inquiry.store):
        unseen.append(f"{problem[0].upper()}{problem[1:]}.")
    by_day = inquiry.command("usage", "--by", "topic,day")
    listed = _share(usage.bytes_in_queues, usage.log_bytes)
    remarks = []
    for row in topics[:1]:
        if row["bytes"] >= _MUCH * usage.log_bytes and not row["shared"]:
            share = f"{about}{_share(row['bytes'], usage.log_bytes)} of the log"
            remarks.append(Remark(Severity.NOTE, f"topic {row['topic']} takes {share}", by_day))
    return Section(
        "space",
        "What fills the log",
        f"{usage.messages:,} messages in queues take {about}{listed} of the log.",
        plots=[_topics_plot(topics, usage.log_bytes), _days_plot(inquiry, days)] if topics else [],
        grids=[_topics_grid(topics, rest, usage.log_bytes), _days_grid(days)],
        remarks=remarks,
        unseen=unseen,
        commands=[inquiry.command("usage"), inquiry.command("usage", "--by", "queue"), by_day],
    )


def _share(some: int, every: int) -> str:
    return f"{min(1.0, some / max(1, every)):.1%}"


def _topics_grid(topics: Sequence[dict[str, Any]], rest: int, every: int) -> Grid:
    shown = [
        (row["topic"] + " (shared)" * row["shared"], row["messages"], row["bytes"])
        for row in topics[:_ROWS]
    ]
    if rest > 0:
        shown.append(("(in no queue)", None, rest))
    rows = [
        [
            text(name),
            number(count),
            byte_count(some),
            ReportCell(_share(some, every), None, "number"),
        ]
        for name, count, some in shown
    ]
    columns = ("topic", "messages", "bytes", "of the log")
    return Grid(
        "by-topic",
        "By topic",
        columns,
        rows,
        sentence_of_rest(len(topics), _ROWS, "smaller topics"),
    )


def _topics_plot(topics: Sequence[dict[str, Any]], every: int) -> Plot:
    shown = [row for row in topics if not row["shared"]][:_BARS]

    def draw(axes: Axes, narrow: bool) -> None:
        names = [shown_name(row["topic"], _LONGEST[not narrow]) for row in shown]
        if narrow:
            labels = [_share(row["bytes"], every) for row in shown]
        else:
            labels = [bytes_label(row["bytes"], every, row["messages"]) for row in shown]
        draw_bars(axes, names, [row["bytes"] for row in shown], labels)
        label_bytes(axes, "x")
        axes.set_xlabel("bytes of records" if narrow else "bytes of records in the log")

    return Plot("plot-topics", "Bytes by topic", draw, 0.9 + 0.3 * len(shown))


def _by_day(inquiry: Inquiry) -> dict[date | None, dict[str, list[int]]]:
    """Messages and bytes by day, oldest first: topic -> [messages, bytes]. Unknown days come first."""
    days: dict[date | None, dict[str, list[int]]] = {}
    for row in inquiry.usage.by("topic", "day"):
        if not row["shared"]:
            days.setdefault(row["day"], {})[row["topic"]] = [row["messages"], row["bytes"]]
    return {day: days[day] for day in sorted(days, key=lambda day: day or date.min)}


def _day_name(day: date | None) -> str:
    return "unknown" if day is None else day.isoformat()


def _days_grid(days: dict[date | None, dict[str, list[int]]]) -> Grid:
    rows = []
    for day, found in list(days.items())[-_DAYS:]:
        messages, taken = (sum(counts) for counts in zip(*found.values(), strict=True))
        rows.append({"day": _day_name(day), "messages": messages, "bytes": taken})
    more = sentence_of_rest(len(days), _DAYS, "earlier days")
    return columns_of_rows("by-day", "By day of store time (UTC)", "day messages bytes", rows, more)


def _days_plot(inquiry: Inquiry, days: dict[date | None, dict[str, list[int]]]) -> Plot:
    shown = list(days.items())[-_DAYS:]
    leading = inquiry.leading
    values = np.zeros((len(leading) + 1, len(shown)))
    for column, (_, found) in enumerate(shown):
        for topic, (_, taken) in found.items():
            values[(leading.index(topic) if topic in leading else len(leading)), column] += taken

    def draw(axes: Axes, narrow: bool) -> None:
        names = [shown_name(topic, _LONGEST[not narrow]) for topic in leading]
        labels = [_day_name(day) for day, _ in shown]
        plots.draw_days(axes, labels, values, [*names, "all others"], 3 if narrow else 8)
        _legend(axes, narrow)

    return Plot("plot-days", "Bytes by day of store time, UTC", draw)


def _legend(axes: Axes, narrow: bool) -> None:
    """The legend above the axes, where it hides nothing."""
    columns = 2 if narrow else 5
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.3)


def rate(inquiry: Inquiry) -> Section:
    """Messages per second over the store's time."""
    rates = message_rate(inquiry.store)
    title = "When messages were stored"
    if not rates.edges and inquiry.messages:
        why = "The records of the log are not in the order of their store times, or have none."
        unseen = ["Messages by time: the log is not in the order of its store times."]
        return Section("rate", title, why, unseen=unseen)
    if not rates.messages:
        return Section("rate", title, "No queue has a message.")
    leading = inquiry.leading
    counts = np.zeros((len(leading) + 1, len(rates.edges) - 1))
    for topic, some in rates.counts.items():
        counts[leading.index(topic) if topic in leading else len(leading)] += some
    edges = np.array(rates.edges, dtype=float)
    seconds = np.diff(edges) / 1000

    def draw(axes: Axes, narrow: bool) -> None:
        names = [shown_name(topic, _LONGEST[not narrow]) for topic in leading]
        plots.draw_rate(axes, edges, counts / seconds, [*names, "all others"])
        plots.label_times(axes, 6 if narrow else 9)
        axes.set_ylabel("messages per second")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        _legend(axes, narrow)

    busiest = int((counts.sum(axis=0) / seconds).argmax())
    period = shown_duration(max(1, round(1000 * float(seconds.mean()))))
    return Section(
        "rate",
        title,
        f"{rates.messages:,} messages in {len(seconds):,} periods of about {period}; the busiest had "
        f"{counts[:, busiest].sum() / seconds[busiest]:,.1f} messages per second.",
        plots=[Plot("plot-rate", "Messages per second over store time, UTC", draw)],
        commands=[inquiry.command("usage", "--by", "day"), inquiry.command("queues")],
    )


def largest(inquiry: Inquiry) -> Section:
    """The largest messages, each with the command that prints it."""
    most, rows = inquiry.entries_of_a_queue, inquiry.usage.largest
    grid = columns_of_rows(
        *("largest-messages", "", _LARGEST, rows),
        command=lambda row: inquiry.command(
            *("cat", "--topic", row["topic"], "--queue", row["queueId"]),
            *("--offset", row["queueOffset"], "--limit", 1, "--json"),
        ),
    )
    unseen = f"Only the newest {most or 0:,} messages of each queue were looked at."
    return Section(
        "largest",
        "The largest messages",
        f"The {LARGEST} largest records that queues list." if rows else "No queue has a message.",
        grids=[grid] if rows else [],
        unseen=[unseen] if most is not None else [],
    )
