"""rmqstore cat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmq_store.cli.command import command
from rmq_store.cli.messages import MESSAGE_FORM, RAW, Damage, MessageForm
from rmq_store.cli.options import (
    HISTORY,
    LIMIT,
    QUEUES,
    SINCE,
    SKIP_DAMAGED,
    STORE,
    TAGS,
    TOPIC,
    UNTIL,
    StoreArgs,
    WholeNumber,
    flag,
    option,
    time_range,
)
from rmq_store.cli.output import problem
from rmq_store.errors import InvalidArgumentError
from rmq_store.text.progress import Progress
from rmq_store.text.times import Time

if TYPE_CHECKING:
    from rmq_store.search.queue_selection import Search
    from rmq_store.store import MessageStore


@command
def cat(
    at: StoreArgs = STORE,
    topic: str = TOPIC.but(help="The topic.", required=True),
    queue_ids: tuple[int, ...] = QUEUES,
    offset: int | None = option(
        "--offset", type=WholeNumber(min=0), metavar="N", help="Start at this queue offset."
    ),
    begin: Time | None = SINCE,
    end: Time | None = UNTIL,
    tags: str | None = TAGS,
    limit: int | None = LIMIT,
    skip_damaged: bool = SKIP_DAMAGED,
    raw: bool = RAW,
    history: bool = HISTORY,
    verify_queue: bool = flag(
        "--verify-queue",
        help="Hold each entry against its record, even if no column needs the log.",
    ),
    form: MessageForm = MESSAGE_FORM,
) -> bool:
    """Print the messages of a topic in log order; values are separated by tabs."""
    from rmq_store.arrow.column_definitions import column_names
    from rmq_store.cli.batch_printer import BatchPrinter
    from rmq_store.format.queues import QueueSlice
    from rmq_store.search.find_messages import watched, with_place
    from rmq_store.search.queue_selection import (
        CLOCK_SLACK_MS,
        DamageInTime,
        Search,
        selected_slices,
        stored_in_time,
    )

    names = form.names()
    read = column_names(names)
    damage = Damage(skip_damaged)
    with damage, at.open() as opened, Progress("cat") as progress:
        times = time_range([opened], begin, end)
        search = Search([topic], queue_ids or None, *times, compacted=not history)
        slices = selected_slices(opened, search, CLOCK_SLACK_MS)
        on_damage = damage if skip_damaged else None
        if offset is not None:
            _require_offset(opened, search, offset)
            slices = [QueueSlice(s.queue, max(s.start, offset), s.stop) for s in slices]
        needed = list(dict.fromkeys([*read, *(["storeTimestamp"] if search.is_timed else [])]))
        batches = opened.read_slices(
            slices,
            columns=with_place(needed) if progress.active else needed,
            tags=tags,
            unwrap_batches=not raw,
            verify_queue=verify_queue,
            on_damage=on_damage,
            concerns=DamageInTime(opened, search),
            compacted=search.compacted,
        )
        batches = watched(opened, slices, batches, progress, compacted=search.compacted)
        if search.is_timed:
            batches = (one.filter(stored_in_time(one, *times)) for one in batches)
        batches = (one.select(read) for one in batches)
        count = BatchPrinter(form, progress).print(batches, limit)
    if not count:
        problem("no message found")
    return damage.conclude()


def _require_offset(store: MessageStore, search: Search, offset: int) -> None:
    """Raise for an offset that no selected queue has reached; say where it is before the first message.

    A compacted queue may begin at any offset: there the broker gives the next message.
    """
    (topic,) = search.topics or ()
    view, chosen = store.ranges_for(search.compacted), search.queue_ids
    queues = [q for q in store.queues(topic) if chosen is None or q.queue_id in chosen]
    ends = {queue: view.limits(queue) for queue in queues}
    if ends and offset > max(high for _, high in ends.values()):
        raise InvalidArgumentError(
            store.path,
            reason=f"no queue of topic {topic!r} has come to offset {offset}",
            expected=", ".join(
                f"queue {q.queue_id}: {low} to {high}" for q, (low, high) in ends.items()
            ),
            advice="The last number of each queue is the offset of its next message",
        )
    for queue, (low, _) in ends.items():
        is_whole = not search.compacted or store.served.compacted(queue) is None
        if offset >= low or not is_whole:
            continue
        problem(
            f"queue {topic}/{queue.queue_id} begins at {low}: it has no message of offset {offset} "
            f"to {low - 1} any more"
        )
