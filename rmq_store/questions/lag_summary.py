"""How far consumer groups are behind, and which lost messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rmq_store.config.consumer_offsets import committed_offsets
from rmq_store.format.queues import QueueId
from rmq_store.format.topics import RETRY_PREFIX, is_group_of_broker, retry_origin
from rmq_store.reading.store_reader import StoreReader
from rmq_store.search.log_partitions import COUNTED
from rmq_store.search.selection import require_group, require_topic
from rmq_store.system_topics.pop import leaves_out_older_pops
from rmq_store.tables.groups import (
    ABOVE_MAX,
    LOST_ENTRIES,
    LOST_RECORDS,
    NOT_KNOWN,
    NOT_READ,
    group_rows,
)
from rmq_store.tables.table import Row
from rmq_store.text.progress import Progress
from rmq_store.text.sizes import counted

LOST = "BELOW_MIN"
_NO_QUEUE = "NO_SUCH_QUEUE"
_LOSSES = {
    LOST: "unconsumed messages expired in {}",
    LOST_ENTRIES: "the entries of messages that wait in {} are in no file of the queue, so no consumer gets "
    "these. rmqstore rebuild lists them in a new store, as far as the log has them",
    LOST_RECORDS: "messages that wait in {} are in no file of the log, or after its end. rmqstore verify "
    "says what is missing; look for it in a copy or a replica",
}
_PROBLEMS = _LOSSES | {
    NOT_KNOWN: "whether {} may be read is not known: topics.json cannot be read",
    NOT_READ: "messages wait in {} that no consumer reads: the number is readQueueNums of the "
    "topic or more, perm of the topic lacks 4, or topics.json does not have it",
    ABOVE_MAX: "the offset is after the last message in {}: the next ones may be skipped",
}


@dataclass(frozen=True, slots=True)
class LagAnswer:
    """A row of the table `groups` for each queue where a group has an offset.

    `retries`: messages that were sent back to groups that have no offset in that queue yet. A consumer begins
    with the first of them.
    """

    rows: Sequence[Row]
    retries: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by group and topic
    popped_is_least: bool = False  # more check points are in the log than were read

    def furthest_behind(self) -> list[Row]:
        """The rows, furthest behind first; before them those of which the lag is not known."""

        def order(row: Row) -> tuple[bool, int, str, str, int]:
            behind = -(row.get("lag") or 0), row["consumerGroup"], row["topic"], row["queueId"]
            return not _is_unknown(row, "lag"), *behind

        return sorted(self.rows, key=order)

    def summary(self) -> str:
        """How many groups are how far behind, without those of the broker."""
        lags: Counter[str] = Counter()
        rows = [row for row in self.rows if not is_group_of_broker(row["consumerGroup"])]
        for row in rows:
            lags[row["consumerGroup"]] += row.get("lag") or 0
        if not lags:
            return "no group has an offset"
        behind = sum(1 for lag in lags.values() if lag)
        unknown = len({row["consumerGroup"] for row in rows if _is_unknown(row, "lag")})
        total = f"{'at least ' if unknown else ''}{counted(lags.total(), 'message')}"
        some = f", {unknown} not known" if unknown else ""
        popped = _joined(rows, "notAcknowledged", sum)
        least = "at least " if self.popped_is_least else ""
        popped_text = ""
        if popped:
            popped_text = f"; {least}{popped:,} popped before their offsets and not acknowledged"
        sent_back = ""
        if count := sum(self.retries.values()):
            sent_back = f"; {count:,} sent back in retry topics where their groups have no offset"
        return (
            f"{counted(len(lags), 'group')}, {behind} behind, by {total} in all{some}{popped_text}"
            f"{sent_back}"
        )

    def by_group(self) -> list[dict[str, Any]]:
        """Rows by group and topic, furthest behind first; before them those of which the lag is not known.

        None: not known of one of the queues.
        """
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            groups.setdefault((row["consumerGroup"], row["topic"]), []).append(row)
        totals = [
            {
                "consumerGroup": group,
                "topic": topic,
                "queues": len(rows),
                "lag": _joined(rows, "lag", sum),
                "lagBytes": _joined(rows, "lagBytes", sum),
                "lagMs": _joined(rows, "lagMs", max),
                "notAcknowledged": _joined(rows, "notAcknowledged", sum),
                "queuesWithLoss": sum(row["status"] in _LOSSES for row in rows),
            }
            for (group, topic), rows in sorted(groups.items())
        ]
        return sorted(totals, key=lambda total: (total["lag"] is not None, -(total["lag"] or 0)))

    def losses(self) -> Iterator[tuple[dict[str, Any], str]]:
        """A sentence for each group and topic, a row of `by_group`, that lost messages."""
        yield from self._sentences(_LOSSES)

    def without_offset(self, groups: Collection[str], topics: Collection[str]) -> Iterator[str]:
        """A sentence for each of `groups` without an offset; without groups, if no group has an offset."""
        known = {row["consumerGroup"] for row in self.rows}
        lacking = [f"group {group} has no" for group in groups if group not in known]
        if not groups and not known:
            lacking = ["no group has an"]
        of = f" of topic {', '.join(topics)}" if topics else ""
        for who in lacking:
            yield f"{who} offset{of}, so that how far it is behind is not known"

    def _sentences(self, of_status: Mapping[str, str]) -> Iterator[tuple[dict[str, Any], str]]:
        queues = Counter((row["status"], row["consumerGroup"], row["topic"]) for row in self.rows)
        for total in self.by_group():
            for status, what in of_status.items():
                if count := queues[status, total["consumerGroup"], total["topic"]]:
                    yield total, f"{_name(total)}: {what.format(counted(count, 'queue'))}"

    def problems(self, max_lag: int | None = None) -> Iterator[str]:
        """A sentence for each group that lost messages, does not get some, has an offset after them,
        or is more than `max_lag` messages behind."""
        yield from (sentence for _, sentence in self._sentences(_PROBLEMS))
        lags: Counter[tuple[str, str]] = Counter()
        for row in self.rows:
            lags[row["consumerGroup"], row["topic"]] += row.get("lag") or 0
        for total in self.by_group() if max_lag is not None else ():
            lag = lags[total["consumerGroup"], total["topic"]]
            if max_lag is not None and lag > max_lag:
                least = "at least " if total["lag"] is None else ""
                behind = f"{least}{counted(lag, 'message')}"
                yield f"{_name(total)} is {behind} behind; at most {max_lag:,} are allowed"
        for (group, topic), count in self.retries.items() if max_lag is not None else ():
            if max_lag is not None and count > max_lag:
                yield (
                    f"group {group} of topic {topic} has no offset there, and "
                    f"{counted(count, 'message')} wait; at most {max_lag:,} are allowed"
                )


def lag_of(
    store: StoreReader,
    groups: Collection[str] = (),
    topics: Sequence[str] = (),
    queue_ids: Collection[int] = (),
    *,
    read_whole: int = COUNTED,
    progress: Progress | None = None,
) -> LagAnswer:
    """The lag of `groups` in `topics` and in queues with these numbers; empty means all.

    Rows are in the order of the broker's files. `read_whole`: the bytes of more messages of a queue are
    estimated from samples. `progress` counts offsets. Raises InvalidArgumentError for an unknown group,
    UnknownQueueError for a topic or a queue.
    """
    every = list(committed_offsets(store.path, store.config.enableLmq))
    for group in set(groups).difference(offset.group for offset in every):
        require_group(store, group)
    for topic in set(topics).difference(offset.queue.topic for offset in every):
        require_topic(store, topic)
    if len(topics) == 1:
        store.view.require_queue_ids(topics[0], queue_ids)

    def is_wanted(group: str, queue: QueueId) -> bool:
        return (
            (not groups or group in groups)
            and (not topics or queue.topic in topics)
            and (not queue_ids or queue.queue_id in queue_ids)
        )

    wanted = [offset for offset in every if is_wanted(offset.group, offset.queue)]
    known = {(offset.group, offset.queue) for offset in every}
    retries: Counter[tuple[str, str]] = Counter()
    with_offsets = {offset.group for offset in every}
    for queue, state in store.snapshot().queues.items():
        if queue.topic.startswith(RETRY_PREFIX):
            group = retry_origin(queue.topic, {}, store.view.topics.known_names).group
            has_none = group in with_offsets and (group, queue) not in known
            if has_none and is_wanted(group, queue):
                retries[group, queue.topic] += state.max_offset - state.min_offset
    if progress is not None:
        progress.expect(len(wanted))
    rows = []
    for row in group_rows(store, wanted, read_whole):
        rows.append(row)
        if progress is not None:
            progress(1)
    return LagAnswer(rows, retries, leaves_out_older_pops(store))


def _is_unknown(row: Row, name: str) -> bool:
    """Whether a number is not known; in a queue that is not there, nothing waits."""
    return row.get(name) is None and row["status"] != _NO_QUEUE


def _joined(rows: Iterable[Row], name: str, join: Callable[[list[int]], int]) -> int | None:
    """The sum, or the maximum, of a number of some queues; None if it is not known of one."""
    if any(_is_unknown(row, name) for row in rows):
        return None
    return join([row.get(name) or 0 for row in rows])


def _name(total: Mapping[str, Any]) -> str:
    return f"group {total['consumerGroup']} of topic {total['topic']}"
