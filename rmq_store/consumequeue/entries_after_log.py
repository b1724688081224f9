"""Entries that lead after the end of the log, or into damage: their messages are not in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from rmq_store.commitlog.headers import wrong_crc_rows
from rmq_store.commitlog.log import CommitLog
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.consumequeue.queue_folders import QueueFolders
from rmq_store.errors import StoreError
from rmq_store.escaping import LOG, printable
from rmq_store.format.queue_entries import Entries
from rmq_store.format.queues import QueueId
from rmq_store.text.sizes import counted

_NAMED = 5  # queues in a sentence


def entries_after(
    folders: QueueFolders, log: CommitLog, log_end: int, stops: Mapping[QueueId, int]
) -> dict[QueueId, int]:
    """How many units before these `stops` lead after the end of the log, and to no intact record there.

    Of each queue with such ones.
    """
    listed, found = folders.listed(), {}
    for queue, stop in stops.items():
        files = folders.files(queue, batch=listed[queue]) if queue in listed else None
        start = stop if files is None else files.stop_before_log(log_end, stop)
        if files is not None and start < stop:
            found[queue] = _leading_nowhere(log, files.entries(start, stop))
    return {queue: count for queue, count in found.items() if count}


def entries_inside(
    folders: QueueFolders, ranges: Collection[tuple[int, int]]
) -> dict[QueueId, int]:
    """How many units of each queue lead into ranges of the log, or to a record that reaches into one."""
    found: Counter[QueueId] = Counter()
    for queue, batch in folders.listed().items() if ranges else ():
        files = folders.files(queue, batch=batch)
        first, stop = files.first_unit, files.find_stop()
        for begin, end in ranges:
            low, high = files.stop_before_log(begin, stop), files.find_unit_at_log(end, first, stop)
            found[queue] += max(0, high - low)
    return dict(+found)


def _leading_nowhere(log: CommitLog, entries: Entries) -> int:
    """How many entries lead to no intact record."""
    intact = 0
    for rows, headers in log.whole_headers(entries.log_offset, entries.size):
        intact += len(rows) - len(wrong_crc_rows(headers))
    return len(entries) - intact


def line_of_lost_end(after_log: Mapping[QueueId, int], log_end: int) -> str:
    """A sentence about entries that lead after the end of the log, and to no record, by queue."""
    return (
        f"{entries_by_queue(after_log)} leading after the log's end at log offset {log_end}: normal after a "
        "crash and in a copy of a running store. Else a file of the log is missing, cut or damaged: a copy "
        "or a replica may have it"
    )


def entries_by_queue(counts: Mapping[QueueId, int]) -> str:
    """A phrase about the numbers of entries of some queues, the largest first."""
    most = sorted(counts.items(), key=lambda item: -item[1])[:_NAMED]
    named = ", ".join(f"{queue.name}: {count}" for queue, count in most)
    more = ", ..." if len(counts) > _NAMED else ""
    entries, queues = counted(sum(counts.values()), "entry"), counted(len(counts), "queue")
    return printable(f"{entries} in {queues} ({named}{more})")


class EntriesAfterCopy:
    """Those of a store whose log is copied: the ends of its queues are as of now.

    A broker that writes meanwhile lists what the log has already. Nothing else in a copy of the log needs
    the queues, so damaged ones only leave this unknown.
    """

    def __init__(self, root: Path, config: StoreConfig, log: CommitLog) -> None:
        self._folders = QueueFolders(root, config, log)
        self._log = log.listed_again()
        try:
            self._stops = self._folders.stops()
        except StoreError as error:
            self._stops = self._unknown(error)

    def behind(self, log_end: int) -> dict[QueueId, int]:
        """How many entries of each queue lead after `log_end` to no record. To be called once."""
        try:
            return entries_after(self._folders, self._log, log_end, self._stops)
        except StoreError as error:
            return self._unknown(error)
        finally:
            self._folders.close()
            self._log.chain.close()

    @staticmethod
    def _unknown(error: StoreError) -> dict[QueueId, int]:
        LOG.warning("whether queues list messages that the log lacks is not known: %s", error)
        return {}


def rows_of_counts(entries: Mapping[QueueId, int]) -> list[dict[str, Any]]:
    """Numbers of entries by queue as plain values for JSON."""
    return [{**queue._asdict(), "entries": count} for queue, count in entries.items()]
