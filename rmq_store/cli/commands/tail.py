"""rmqstore tail."""

from __future__ import annotations

import signal
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from rmq_store.cli import options
from rmq_store.cli.command import command
from rmq_store.cli.messages import DAMAGE, MESSAGE_FORM, RAW, MessageForm, SkippedDamage
from rmq_store.cli.options import StoreArgs, flag, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from rmq_store.format.queues import QueueId, QueueSlice
    from rmq_store.reading.log_reader import LogPlace, QueueLimits
    from rmq_store.reading.store_reader import StoreReader
    from rmq_store.search.selection import Search


@command
def tail(
    at: StoreArgs = options.STORE,
    topics: tuple[str, ...] = options.TOPICS.but(
        help="Only this topic; repeatable (default: all user topics)."
    ),
    queue_ids: tuple[int, ...] = options.QUEUES,
    lines: int = option(
        "-n",
        "--lines",
        type=options.WholeNumber(min=0),
        metavar="N",
        default=10,
        help="Number of newest messages per queue.",
    ),
    follow: bool = flag("-f", "--follow", help="Keep printing new messages."),
    interval: float = option(
        "--interval",
        metavar="SECONDS",
        type=options.seconds,
        default=1.0,
        help="Seconds between two reads of the store.",
    ),
    tags: str | None = options.TAGS,
    damage: SkippedDamage = DAMAGE,
    raw: bool = RAW,
    form: MessageForm = MESSAGE_FORM,
) -> bool:
    """Print the newest messages of each queue; with -f, also new ones until ctrl-C.

    With -f, a topic that is created later is printed from its first message. It fails if the log was
    cut behind what it has printed, if files expired before it read them, or if another store is there.

    Examples:
        rmqstore tail /data/store --topic orders -n 5
        # also new messages, until ctrl-C
        rmqstore tail /data/store -f --topic orders --tag shipped
    """
    from rmq_store.cli.batch_printer import BatchPrinter
    from rmq_store.search.selection import Search

    printer = BatchPrinter(form)
    how: dict[str, Any] = {
        "columns": form.names(),
        "tags": tags,
        "unwrap_batches": not raw,
        "on_damage": damage.handler,
    }
    interrupted = _interrupt_event()
    following = _Following(at, topics, queue_ids)
    with damage:
        with at.open() as opened:
            end = following.begin(opened) if follow else None
            slices = _newest(opened, Search(topics or None, queue_ids or None), lines, end)
            printer.print(opened.read_slices(slices, compacted=False, **how))
        while follow:
            sys.stdout.flush()
            if interrupted.is_set():
                raise KeyboardInterrupt
            time.sleep(interval)
            printer.print(following.new_messages(**how))
    return damage.conclude()


class _Following:
    """The messages of one store that are new since the last look. Their queues are not read."""

    def __init__(self, at: StoreArgs, topics: tuple[str, ...], queue_ids: tuple[int, ...]) -> None:
        from rmq_store.reading.log_reader import LogEndFinder

        self._at, self._topics, self._queue_ids = at, topics, queue_ids
        self._log = LogEndFinder(self._listed_end)
        self._place: LogPlace

    def begin(self, store: StoreReader) -> int:
        """Follow `store` from the log offset that is returned: no record before it still changes."""
        from rmq_store.reading.log_reader import LogPlace

        # The log may have grown since the store was opened.
        end = min(store.log_range()[1], self._log.end(store.log, store.log.start))
        self._place = LogPlace.at(store.log, end)
        return end

    def new_messages(self, **how: Any) -> Iterator[pa.RecordBatch]:
        """The messages after the last look, in the order of the log. Raises as `LogEndFinder.end_after`."""
        from rmq_store.files.segments import again_if_expired

        start = self._place.offset
        self._place = again_if_expired(self._look)
        end = self._place.offset
        if end == start:
            return
        with self._opened(end) as store:
            yield from store.read_log(start, end, limits=partial(self._limits, store), **how)

    def _look(self) -> LogPlace:
        from rmq_store.reading.log_reader import LogPlace

        with self._opened(0) as store:
            end = self._log.end_after(store.log, self._place, self._at.store)
            return LogPlace.at(store.log, end) if end > self._place.offset else self._place

    def _opened(self, end: int | None) -> StoreReader:
        """The store without its queues, up to a log offset; None means the whole store."""
        from rmq_store.reading.store_reader import StoreReader
        from rmq_store.snapshot.snapshot import StoreSnapshot

        return StoreReader.open(
            self._at.store,
            broker_name=self._at.broker_name,
            broker_conf=self._at.broker_conf,
            snapshot=None if end is None else StoreSnapshot(0, end),
            queues=end is None,
        )

    def _limits(self, store: StoreReader, queue: QueueId) -> QueueLimits | None:
        from rmq_store.reading.log_reader import QueueLimits

        topics, queue_ids = self._topics, self._queue_ids
        wanted = queue.topic in topics if topics else not store.is_system_topic(queue.topic)
        wanted = wanted and (not queue_ids or queue.queue_id in queue_ids)
        return QueueLimits() if wanted else None

    def _listed_end(self) -> int:
        from rmq_store.reading.log_reader import end_of_known_records

        with self._opened(None) as store:
            return end_of_known_records(store.view, store.queues())


def _interrupt_event() -> threading.Event:
    """Set by ctrl-C, which Python may lose: it ignores what is raised while it frees an object."""
    event = threading.Event()

    def note(*_: object) -> None:
        event.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    return event


def _newest(store: StoreReader, search: Search, lines: int, end: int | None) -> list[QueueSlice]:
    """The newest messages of each queue; of those before a log offset, if that is given."""
    from rmq_store.format.queues import QueueSlice
    from rmq_store.search.selection import ranges_in_store

    slices = []
    for slice_ in ranges_in_store(store, search):
        stop = slice_.stop
        if end is not None and len(slice_) and end < store.log_range()[1]:
            stop = store.view.offset_at_log(slice_.queue, end)
        start = max(slice_.start, stop - lines)
        if lines:  # one without messages stands for what its queue has lost
            slices.append(QueueSlice(slice_.queue, start, stop))
    return slices
