"""Entries that lead after the end of a log that is copied: their messages are not in the copy."""

from __future__ import annotations

import logging

from rmq_store.consumequeue.queue_folders import QueueFolders
from rmq_store.errors import StoreError
from rmq_store.format.queues import QueueId
from rmq_store.store import MessageStore

LOG = logging.getLogger("rmqstore")


class EntriesAfterLog:
    """The ends of all queues as of now: a broker that writes meanwhile lists what the log has already.

    Nothing else in a copy of the log needs the queues, so damaged ones only leave this unknown.
    """

    def __init__(self, store: MessageStore) -> None:
        self._folders = QueueFolders(store.path, store.config, store.log)
        self._log = store.log.listed_again()
        try:
            self._stops = self._folders.stops()
        except StoreError as error:
            self._stops = self._unknown(error)

    def behind(self, log_end: int) -> dict[QueueId, int]:
        """How many entries of each queue lead after `log_end` to no record. To be called once."""
        try:
            return self._folders.entries_after(self._log, log_end, self._stops)
        except StoreError as error:
            return self._unknown(error)
        finally:
            self._folders.close()
            self._log.chain.close()

    @staticmethod
    def _unknown(error: StoreError) -> dict[QueueId, int]:
        LOG.warning("whether queues list messages that the log lacks is not known: %s", error)
        return {}
