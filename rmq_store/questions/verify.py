"""Check that the log, the queues, the index and the configuration of a store agree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rmq_store.questions.answer_by_shares import OnProgress
from rmq_store.store import MessageStore
from rmq_store.verify.verify_store import LogPart, VerifyReport, check_log, conclude, log_parts


@dataclass(frozen=True, slots=True)
class VerifyQuestion:
    """Checks a whole store. A share is one log file. Progress counts bytes of the log. `bodies`: as in
    `verify`."""

    bodies: bool = False

    def plan(self, store: MessageStore) -> list[tuple[int, int]]:
        """The log ranges to check, as log offsets."""
        return log_parts(store)

    def work(self, store: MessageStore, share: tuple[int, int], progress: OnProgress) -> LogPart:
        """Check one range of the log, and the queue entries and index items of its records."""
        return check_log(store, *share, progress, bodies=self.bodies)

    def weight(self, share: tuple[int, int]) -> int:
        """Bytes of the range."""
        return share[1] - share[0]

    def merge(self, store: MessageStore, parts: Iterable[LogPart]) -> VerifyReport:
        """The report. Also checks what no single part of the log shows."""
        whole = LogPart()
        for part in parts:
            whole.add(part)
        return conclude(store, whole)
