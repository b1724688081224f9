"""What a job has done to a target so far, in a file beside it, so that nothing is done twice.

The file `TARGET.replay.json` is replaced as a whole, and flushed: a process killed at any point
leaves a ledger that claims no more than what is in the target. While a process works on the target
it holds a lock on `TARGET.replay.lock`, which a killed one loses.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from jobs.running.target_lock import TargetLock
from rmq_store import StoreError
from rmq_store.files.durable import write_whole
from rmq_store.format.queues import QueueId, QueueSlice

FORMAT = 1

State = Literal["writing", "stopped", "done"]


class LedgerError(StoreError):
    """What the ledger beside a target says forbids what was asked for."""

    code = "RMQSTORE_LEDGER"


@dataclass(frozen=True, slots=True)
class Run:
    """One replay into the target.

    `writing`: a process is, or was, in the middle of it. `stopped`: it ended early and closed the
    target. `next_log_offset` is a CommitLog offset of the source: what is selected before it is in
    the target, nothing behind it is; None once the target store has everything. `target_end` is
    where the target's log ended when that was true.
    """

    run_id: str
    asked: Mapping[str, Any]  # what determines the rows: another selection is another replay
    state: State
    created: bool  # the target store did not exist before
    ranges: tuple[QueueSlice, ...]
    snapshot: Mapping[str, Any]
    next_log_offset: int | None = 0
    target_end: int = 0
    parquet: State | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    started: str = ""
    updated: str = ""

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        return self.state == "done"


def new_run(**known: Any) -> Run:
    """A run that begins now and has written nothing."""
    return Run(run_id=uuid.uuid4().hex, state="writing", started=_now(), **known)


class Ledger:
    """The runs into one target, oldest first. Only the last one can be unfinished.

    A context manager: inside, no other process can have the ledger of this target open so.
    """

    def __init__(self, target: str | os.PathLike[str]) -> None:
        target = Path(target).absolute()
        self.path = target.with_name(target.name + ".replay.json")
        self.runs: list[Run] = []
        self._lock_path = target.with_name(target.name + ".replay.lock")
        self._lock: TargetLock | None = None

    @classmethod
    def seen(cls, target: str | os.PathLike[str]) -> Ledger:
        """The ledger as it is now, to look at: nothing is locked, and no file made."""
        ledger = cls(target)
        ledger.runs = _load(ledger.path) if ledger.path.exists() else []
        return ledger

    def __enter__(self) -> Ledger:
        self._lock = TargetLock(self._lock_path)
        try:
            self.runs = _load(self.path) if self.path.exists() else []
        except BaseException:
            self._unlock()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def unfinished(self) -> Run | None:
        """The run that was cut short, if there is one."""
        return self.runs[-1] if self.runs and not self.runs[-1].finished else None

    def finished_like(self, asked: Mapping[str, Any]) -> Run | None:
        """A finished run that was asked for the same."""
        return next((run for run in self.runs if run.finished and run.asked == asked), None)

    def begin(self, run: Run) -> Run:
        """Write down that `run` is about to change the target."""
        self.runs.append(run)
        self._save()
        return run

    def record(self, run: Run, **changes: Any) -> Run:
        """Write down what became of the last run; returns it changed."""
        assert self.runs[-1].run_id == run.run_id
        self.runs[-1] = replace(run, updated=_now(), **changes)
        self._save()
        return self.runs[-1]

    def forget_last(self) -> None:
        """Drop the last run, whose target is gone."""
        self.runs.pop()
        if self.runs:
            self._save()
        else:
            self.path.unlink(missing_ok=True)

    def _save(self) -> None:
        content = {"format": FORMAT, "runs": [_to_json(run) for run in self.runs]}
        write_whole(self.path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _to_json(run: Run) -> dict[str, Any]:
    ranges = [[*part.queue, part.start, part.stop] for part in run.ranges]
    return {**asdict(run), "ranges": ranges}


def _load(path: Path) -> list[Run]:
    try:
        content = json.loads(path.read_text("utf-8"))
        if content["format"] != FORMAT:
            raise LedgerError(
                path,
                reason="a ledger in a form that this version does not know",
                expected=FORMAT,
                actual=content["format"],
                advice="Use the version that wrote it, or replay into a new target",
            )
        return [_from_json(run) for run in content["runs"]]
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(
            path,
            reason=f"cannot be read as a ledger: {error!r}",
            advice="Replay into a new target; what is in this one cannot be told from here",
        ) from error


def _from_json(content: dict[str, Any]) -> Run:
    ranges = tuple(
        QueueSlice(QueueId(topic, queue_id), start, stop)
        for topic, queue_id, start, stop in content["ranges"]
    )
    return Run(**{**content, "ranges": ranges})
