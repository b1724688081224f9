"""Open the store that a replay writes to. Refuses if messages could be written twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import pyarrow as pa

from rmq_store import MessageStore
from rmq_store.errors import ForeignLogError, StoreError, StoreLockedError
from rmq_store.files.journal import JournalError, has_content
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.topics import OP_TOPICS
from rmq_store.system_topics.open_state import HalfName
from rmq_store.system_topics.system_topic_rows import property_of, whole_numbers
from rmq_store.writing.accepted_rows import Refusal, append_accepted
from rmqstore_jobs.replaying.origin_properties import ORIGIN_PREFIX
from rmqstore_jobs.replaying.replay_journal import ReplayJournal, ReplayRun
from spark_source.writing.target.settle_killed_write import settle_append
from spark_source.writing.target.write_options import WriteOptions

if TYPE_CHECKING:
    from rmq_store.writing.store_writer import StoreWriter


def settle_target(run: ReplayRun, journal: ReplayJournal, asked: WriteOptions) -> None:
    """Undo what an interrupted run appended after its last whole wave.

    Raises JournalError if the target is missing, or if another process has opened it since. Whether
    it ends where the journal says is for `open_target` to find out.
    """
    if run.created and not has_content(asked.path):
        if run.target_end:
            raise JournalError(
                asked.path,
                reason="the target of an interrupted replay is missing",
                advice=f"Restore it, or delete {journal.path} to replay from the start",
            )
        return
    with _continuing(run, journal, asked.path):
        settle_append(run.append, asked, journal.path)


def open_target(
    run: ReplayRun, journal: ReplayJournal, asked: WriteOptions, *, resumed: bool
) -> StoreWriter:
    """The target store of `run`, opened for appending; created if the run creates it.

    Raises JournalError if a resumed run finds another end of the log than the journal says.
    """
    if run.created and not has_content(asked.path):
        return MessageStore.create(asked.path, asked.config, release=asked.release)
    with _continuing(run, journal, asked.path) if resumed else nullcontext():
        store = MessageStore.append_to(
            asked.path, asked.config, release=asked.release, recovery="refuse"
        )
        end = store.log_range()[1]
        if end != run.target_end:
            store.close()
            raise JournalError(
                asked.path,
                reason="its log has another end than the journal says",
                expected=run.target_end,
                actual=end,
                advice="Another process has written into the store",
            )
    return store


@contextmanager
def _continuing(run: ReplayRun, journal: ReplayJournal, path: str) -> Iterator[None]:
    """Convert what prevents that an interrupted run is continued to a JournalError with what to do."""
    try:
        yield
    except (StoreLockedError, ForeignLogError):
        raise
    except StoreError as error:
        raise JournalError(
            path,
            reason=f"a replay into this target was interrupted, and what arrived is unknown: {error}",
            advice=f"Nothing was deleted; {journal.how_to_start_again(run)}",
        ) from error


def append_rows(store: StoreWriter, batch: pa.RecordBatch) -> Iterator[Refusal]:
    """Append all rows that the store accepts, in order. Yields the reason for each refused row."""
    for _, error in append_accepted(store, batch).refused:
        yield error


def halves_arrived(run: ReplayRun, asked: WriteOptions) -> list[tuple[HalfName, int, int, int]]:
    """The half messages that a resumed run has appended: what they are called and their log offset in the
    source, their queue offset and log offset here."""
    before = {QueueId(topic, queue_id): end for topic, queue_id, end in run.target_queues}
    columns = ("queueOffset", "commitLogOffset", "properties")
    halves = []
    with MessageStore.open(asked.path, config=asked.config) as store:
        for queue in (queue for topic in OP_TOPICS for queue in store.queues(topic)):
            part = QueueSlice(queue, before.get(queue, 0), store.max_offset(*queue))
            for batch in store.read_slices([part], columns=columns):
                old = (
                    whole_numbers(property_of(batch, ORIGIN_PREFIX + name)).to_pylist()
                    for name in ("QUEUE_OFFSET", "LOG_OFFSET")
                )
                new = (batch[name].to_pylist() for name in columns[:2])
                halves += [
                    ((*queue, offset), place, *places)
                    for offset, place, *places in zip(*old, *new, strict=True)
                ]
    return halves


def queue_ends(store: MessageStore | StoreWriter) -> dict[QueueId, int]:
    """The max offset of every queue of `store`."""
    return {queue: store.max_offset(*queue) for queue in store.queues()}
