"""Whether the log, the queues, the index and the configuration of a store agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rmq_store.questions.engine import OnProgress
from rmq_store.store import MessageStore
from rmq_store.verify.verify_store import LogPart, VerifyReport, check_log, conclude, log_parts


@dataclass(frozen=True, slots=True)
class VerifyQuestion:
    """Examines all of a store; a share is one file of the log. Progress counts bytes of the log."""

    def plan(self, store: MessageStore) -> list[tuple[int, int]]:
        """The ranges of the log, as log offsets."""
        return log_parts(store)

    def work(self, store: MessageStore, share: tuple[int, int], progress: OnProgress) -> LogPart:
        """What is found in one range of the log and in what its records ask for."""
        return check_log(store, *share, progress)

    def weight(self, share: tuple[int, int]) -> int:
        """Bytes of the range."""
        return share[1] - share[0]

    def merge(self, store: MessageStore, parts: Sequence[LogPart]) -> VerifyReport:
        """The report; what no part of the log can see is examined here."""
        whole = LogPart()
        for part in parts:
            whole.add(part)
        return conclude(store, whole)
