"""rmqstore scheduled, transactions, retries, pop, traces: what the broker's own topics stand for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, NamedTuple

import click

from rmq_store.cli import options
from rmq_store.cli.command import command
from rmq_store.cli.messages import DAMAGE, SkippedDamage
from rmq_store.cli.options import StoreArgs, flag, option, options_as_one
from rmq_store.cli.output import OUTPUT, Output, note, progress_of_reads
from rmq_store.format.topics import RESERVED_PREFIX
from rmq_store.reading.store_reader import StoreReader
from rmq_store.search.selection import require_group, require_topic
from rmq_store.system_topics.open_state import expired_unfinished
from rmq_store.tables import TABLES
from rmq_store.text.sizes import counted

_DELAYED = ("waiting", "overdue", "delivered", "cancelled", "lost")
_GROUPS, _TOPICS = ("consumerGroup", "groupName"), ("topic", "originTopic")
_TRANSACTIONS = ("open", "committed", "rolledBack", "givenUp", "ended", "unknown")
_POPPED = ("invisible", "due", "acknowledged", "retried")
_ENDED = _POPPED[2:]


# What is printed as text. A narrow terminal keeps the columns with a star.
_SHOWN = {
    "scheduled": "state* dueTimestamp* topic* queueId* kind delayLevel overdueMs keys* uniqKey* "
    "commitLogOffset",
    "transactions": "state* sinceTimestamp* topic* queueId* producerGroup checks* openMs keys "
    "transactionId* halfQueueOffset",
    "retries": "consumerGroup* originTopic* originQueueId* originQueueOffset reconsumeTimes* "
    "firstTimestamp lastTimestamp* deadLetterTimestamp keys uniqKey*",
    "pop": "state* consumerGroup* topic* queueId* queueOffset* givenTimestamp invisibleUntil* "
    "timesGiven",
    "traces": "timestamp* traceType* groupName* topic* outcome* costMs keys* msgId unreadable",
}
# The codes of what expired before the broker was done with it.
_EXPIRED = {"scheduled": ("delay-behind", "timer-behind"), "transactions": ("transactions-behind",)}


class _Hidden(NamedTuple):
    """Rows that are left out, and what is said of them."""

    is_hidden: Callable[[Mapping[str, Any]], bool]
    text: str


_OF_BROKER = _Hidden(
    lambda row: str(row.get("topic")).startswith(RESERVED_PREFIX),
    "of the broker's own are left out; --system shows them",
)
_OF_ENDED_POPS = _Hidden(
    lambda row: row["state"] in _ENDED, "acknowledged or retried are left out; --state shows them"
)


@dataclass(frozen=True, slots=True)
class RowArgs:
    """What is printed of the rows, and how."""

    limit: int | None
    damage: SkippedDamage
    out: Output


_ROWS = options_as_one(
    RowArgs, limit=options.LIMIT.but(help="Print at most N rows."), damage=DAMAGE, out=OUTPUT
)
_TOPIC = options.TOPIC.but(help="Only messages for this topic.")


@command
def scheduled(
    at: StoreArgs = options.STORE,
    topic: str | None = _TOPIC,
    state: str | None = option(
        "--state", type=click.Choice(_DELAYED), help="Only messages in this state."
    ),
    system: bool = flag("--system", help="Include the broker's own, such as pop checkpoints."),
    how: RowArgs = _ROWS,
) -> bool:
    """List messages that the broker is to deliver later, by delay level or by timer.

    What the broker's files count as delivered is left out. A message is overdue when it was due before
    the newest record of the log. Exit code 1 if messages expired with the log before they were delivered.

    Examples:
        # what the broker should have delivered
        rmqstore scheduled /data/store --state overdue
        rmqstore scheduled /data/store --topic payments --limit 10
    """
    hidden = None if system or topic is not None else _OF_BROKER
    return _print(at, "scheduled", {"topic": topic, "state": state}, how, hidden)


@command
def transactions(
    at: StoreArgs = options.STORE,
    topic: str | None = _TOPIC,
    state: str | None = option(
        "--state", type=click.Choice(_TRANSACTIONS), help="Only transactions in this state."
    ),
    how: RowArgs = _ROWS,
) -> bool:
    """List transactions of which a half message is left, with what became of them.

    Exit code 1 if half messages expired with the log before the broker was done with them.

    Examples:
        # what is neither committed nor rolled back
        rmqstore transactions /data/store --state open
    """
    return _print(at, "transactions", {"topic": topic, "state": state}, how)


@command
def retries(
    at: StoreArgs = options.STORE,
    group: str | None = options.GROUP,
    topic: str | None = options.TOPIC.but(help="Only messages of this topic."),
    how: RowArgs = _ROWS,
) -> bool:
    """List messages that consumer groups sent back: where they came from, how often, since when.

    rmqstore dlq lists those that a group gave up.

    Examples:
        rmqstore retries /data/store --group g-retry --limit 10
    """
    return _print(at, "retries", {"consumerGroup": group, "originTopic": topic}, how)


@command
def pop(
    at: StoreArgs = options.STORE,
    group: str | None = options.GROUP,
    topic: str | None = options.TOPIC.but(
        help="Only messages of this topic, which may be a retry topic."
    ),
    state: str | None = option(
        "--state", type=click.Choice(_POPPED), help="Only messages in this state."
    ),
    how: RowArgs = _ROWS,
) -> bool:
    """List messages that consumer groups popped and did not acknowledge, so that they come again.

    The broker's offset of a group moves when messages are given: lag counts these as consumed. invisible: no
    other consumer gets it yet; due: the time for that is over. Clients of 5.x pop by default.

    Examples:
        rmqstore pop /data/store --group g-slow
        # what consumers did not acknowledge in time
        rmqstore pop /data/store --topic orders --state due
    """
    wanted = {"consumerGroup": group, "topic": topic, "state": state}
    return _print(at, "pop", wanted, how, None if state else _OF_ENDED_POPS)


@command
def traces(
    at: StoreArgs = options.STORE,
    group: str | None = options.GROUP.but(help="Only reports of this producer or consumer group."),
    message_id: str | None = option(
        "--id",
        type=options.nonempty_text,
        metavar="ID",
        help="Only reports about this message (UNIQ_KEY).",
    ),
    how: RowArgs = _ROWS,
) -> bool:
    """Print what producers and consumers reported of their messages (RMQ_SYS_TRACE_TOPIC).

    Examples:
        rmqstore traces /data/store --group g-slow --limit 10
    """
    return _print(at, "traces", {"groupName": group, "msgId": message_id}, how)


def _print(
    at: StoreArgs,
    name: str,
    wanted: Mapping[str, str | None],
    how: RowArgs,
    hidden: _Hidden | None = None,
) -> bool:
    """Print the rows that have the wanted values, and what expired. Returns whether some did, or damage."""
    damage, words, codes = how.damage, _SHOWN[name].split(), _EXPIRED.get(name, ())
    filters = {column: value for column, value in wanted.items() if value is not None}
    with at.open() as opened:
        with damage, progress_of_reads(name, opened) as progress:
            rows = _Rows(TABLES[name].rows(opened, on_damage=damage.handler), filters, hidden)
            some_rows = islice(rows, how.limit)
            first = list(islice(some_rows, 1))
            if not first and not damage.count:
                _require_known(opened, filters, rows.groups)
            pieces = TABLES[name].pieces_of_rows(opened.broker_name, chain(first, some_rows))
            columns = [word.rstrip("*") for word in words]
            kept = [word.rstrip("*") for word in words if word.endswith("*")]
            how.out.table(pieces, columns, kept=kept, progress=progress)
        expired = [loss for loss in expired_unfinished(opened) if loss.code in codes]
    states = ", ".join(f"{count} {state}" for state, count in rows.states.items() if state)
    total = counted(rows.states.total(), "row")
    note(f"{total}: {states}" if states else total)
    if hidden is not None and rows.left_out and rows.states.total() != how.limit:
        note(f"{rows.left_out:,} {hidden.text}")
    for loss in expired:
        note(str(loss))
    return damage.conclude() or bool(expired)


@dataclass
class _Rows:
    """The rows that have the values `given`, but for `hidden` ones, counted by state; and all `groups`."""

    every: Iterable[Mapping[str, Any]]
    given: Mapping[str, str]
    hidden: _Hidden | None
    states: Counter[str] = field(default_factory=Counter)
    left_out: int = 0
    groups: set[str] = field(default_factory=set)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for row in self.every:
            self.groups.update(row[name] for name in _GROUPS if row.get(name) is not None)
            if any(row.get(column) != value for column, value in self.given.items()):
                continue
            if self.hidden is not None and self.hidden.is_hidden(row):
                self.left_out += 1
            else:
                self.states[row.get("state", "")] += 1
                yield row


def _require_known(store: StoreReader, given: Mapping[str, str], met: Iterable[str]) -> None:
    """Raise for a topic or group of which there is no row because the store does not have it."""
    for column, value in given.items():
        if column in _TOPICS:
            require_topic(store, value)
        elif column in _GROUPS:
            require_group(store, value, met)
