"""The ledger of a target: a file beside it that says what replays wrote, so that nothing is written
twice.

The file `TARGET.replay.json` is always replaced as a whole and flushed. So after an interruption
the ledger never claims more than the target has. A process that works on the target holds a lock on
`TARGET.replay.lock`. A killed process loses the lock.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from rmq_store import StoreError
from rmq_store.files.safe_paths import is_plain_name
from rmq_store.format.queues import QueueId, QueueSlice
from spark_source.writing.target.ledger_file import LedgerFile
from spark_source.writing.target.write_journal import APPENDING, Begun

State = Literal["writing", "stopped", "done"]


class LedgerError(StoreError):
    """The ledger of a target does not allow the requested replay."""

    code = "RMQSTORE_LEDGER"


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """One replay into the target.

    `writing`: a process is writing, or was interrupted. `stopped`: it ended early and closed the
    target. `next_log_offset` is a commitLog offset of the source: selected messages before it are
    in the target, later ones are not; None once the target store has everything. `target_end` is
    the end of the target's log at that time.
    """

    run_id: str
    asked: Mapping[str, Any]  # what determines the rows; another selection is another replay
    state: State
    created: bool  # the target store did not exist before
    ranges: tuple[QueueSlice, ...]
    snapshot: Mapping[str, Any]
    next_log_offset: int | None = 0
    target_end: int = 0
    signed: bool = False  # the target store has the mark of this run, which is about to append
    parquet: State | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    started: str = ""
    updated: str = ""

    @property
    def finished(self) -> bool:
        """Whether the run is complete."""
        return self.state == "done"

    @property
    def append(self) -> Begun:
        """What the run is doing to the target store: appending the messages of one wave."""
        return Begun(
            self.run_id, APPENDING, start=self.target_end, signed=self.signed, at=self.started
        )


def new_run(**known: Any) -> ReplayRun:
    """A run that starts now and has written nothing."""
    return ReplayRun(run_id=uuid.uuid4().hex, state="writing", started=_now(), **known)


class Ledger:
    """The replay runs into one target, oldest first. Only the last one can be unfinished.

    A context manager that locks the ledger against other processes.
    """

    def __init__(self, target: str | os.PathLike[str]) -> None:
        target = Path(target).absolute()
        self._file = LedgerFile(
            target.with_name(target.name + ".replay.json"),
            target.with_name(target.name + ".replay.lock"),
            refusal=LedgerError,
            in_doubt="Replay into a new target; the content of this one is unknown",
        )
        self.path = self._file.path
        self.runs: list[ReplayRun] = []

    @classmethod
    def seen(cls, target: str | os.PathLike[str]) -> Ledger:
        """The ledger as it is now, read-only. Takes no lock and creates no file."""
        ledger = cls(target)
        ledger._load()
        return ledger

    def __enter__(self) -> Ledger:
        self._file.lock()
        try:
            self._load()
        except BaseException:
            self._file.unlock()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.unlock()

    def _load(self) -> None:
        self.runs = self._file.load(_to_runs) or []

    def read_again(self) -> ReplayRun | None:
        """The interrupted run by the file, which may differ after an error of `record`."""
        self._load()
        return self.unfinished

    @property
    def unfinished(self) -> ReplayRun | None:
        """The interrupted run, if there is one."""
        return self.runs[-1] if self.runs and not self.runs[-1].finished else None

    def finished_like(self, asked: Mapping[str, Any]) -> ReplayRun | None:
        """A finished run with the same selection."""
        return next((run for run in self.runs if run.finished and run.asked == asked), None)

    def begin(self, run: ReplayRun) -> ReplayRun:
        """Record that `run` is about to change the target."""
        self.runs.append(run)
        self._save()
        return run

    def record(self, run: ReplayRun, **changes: Any) -> ReplayRun:
        """Record changes of the last run. Returns the changed run."""
        assert self.runs[-1].run_id == run.run_id
        self.runs[-1] = replace(run, updated=_now(), **changes)
        self._save()
        return self.runs[-1]

    def forget_last(self) -> None:
        """Remove the last run, whose target was deleted."""
        self.runs.pop()
        if self.runs:
            self._save()
        else:
            self._file.remove()

    def _save(self) -> None:
        self._file.save({"runs": [_to_json(run) for run in self.runs]})


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _to_json(run: ReplayRun) -> dict[str, Any]:
    ranges = [[*part.queue, part.start, part.stop] for part in run.ranges]
    return {**asdict(run), "ranges": ranges}


def _to_runs(content: Mapping[str, Any]) -> list[ReplayRun]:
    return [_from_json(run) for run in content["runs"]]


def _from_json(content: dict[str, Any]) -> ReplayRun:
    ranges = tuple(
        QueueSlice(QueueId(topic, queue_id), start, stop)
        for topic, queue_id, start, stop in content["ranges"]
    )
    run = ReplayRun(**{**content, "ranges": ranges})
    if not is_plain_name(run.run_id):  # a file of refused messages gets this name
        raise ValueError(f"{run.run_id!r} is not a file name")
    if type(run.target_end) is not int:
        raise ValueError(f"{run.target_end!r} is not an integer")
    return run
