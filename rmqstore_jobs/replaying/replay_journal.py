"""The journal of a replay's target: what replays wrote, so that nothing is written twice.

The file `TARGET.replay.json` is beside the target, and while a process works on the target, its lock
`TARGET.replay.lock`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rmq_store.commitlog.other_store_at_path import Mark
from rmq_store.files.journal import Journal, now
from rmq_store.files.safe_paths import is_plain_name
from rmq_store.format.queues import QueueSlice
from spark_source.writing.write_journal import APPENDING, Begun


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """One replay into the target.

    `asked`: what determines the rows; another selection is another replay. `created`: the target
    store did not exist before. `log_range`: commitLog offsets of the source. `target_queues`: topic,
    queue id and max offset of each queue that the target store had. `next_log_offset` is a commitLog
    offset of the source: selected messages before it are in the target, later ones are not; None once
    the target store has everything. `target_end` is the end of the target's log at that time.
    `signed`: the target store has the mark of this run, which is about to append. `marks` are those of
    the source, by which a run that continues notices another store at its path.
    """

    asked: Mapping[str, Any]
    ranges: tuple[QueueSlice, ...]
    log_range: tuple[int, int]
    created: bool = False
    target_queues: tuple[tuple[str, int, int], ...] = ()
    next_log_offset: int | None = 0
    target_end: int = 0
    signed: bool = False
    parquet_done: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: str = field(default_factory=now)
    updated: str = ""
    marks: tuple[Mark, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for a run id that is no file name: refused messages get this name."""
        if not is_plain_name(self.run_id):
            raise ValueError(f"{self.run_id!r} is not a file name")

    @property
    def append(self) -> Begun:
        """What the run is doing to the target store: appending the messages of one wave."""
        return Begun(
            self.run_id, APPENDING, start=self.target_end, signed=self.signed, at=self.started
        )


class ReplayJournal(Journal[ReplayRun, ReplayRun]):
    """The replays into one target: the unfinished one, and those that are done."""

    of = "a replay"
    types = (ReplayRun | None, tuple[ReplayRun, ...])
    in_doubt = "Replay into a new target; the content of this one is unknown"

    def __init__(self, target: str | os.PathLike[str]) -> None:
        target = Path(target).absolute()
        super().__init__(
            target.with_name(target.name + ".replay.json"),
            target.with_name(target.name + ".replay.lock"),
        )

    @classmethod
    def seen(cls, target: str | os.PathLike[str]) -> ReplayJournal:
        """The journal as it is now, read-only. Takes no lock and creates no file."""
        journal = cls(target)
        journal.load()
        return journal

    def done_like(self, asked: Mapping[str, Any]) -> ReplayRun | None:
        """A replay that is done and had the same selection."""
        return next((run for run in self.done if run.asked == asked), None)

    def record(self, run: ReplayRun, **changes: Any) -> ReplayRun:
        """Record the unfinished run, with these changes. Returns it."""
        run = replace(run, updated=now(), **changes)
        self.save(run, *self.done)
        return run

    def finish(self, run: ReplayRun, **changes: Any) -> ReplayRun:
        """Record that the unfinished run is done. Returns it."""
        run = replace(run, updated=now(), **changes)
        self.save(None, *self.done, run)
        return run

    def how_to_start_again(self, run: ReplayRun) -> str:
        """What a user does who does not want to continue a run."""
        store, parquet = run.asked.get("to_store"), run.asked.get("to_parquet")
        if run.asked.get("to_broker") is not None:
            return "to start again, name another --failed folder"
        if store is None or run.created:
            targets = " and ".join(str(path) for path in (store, parquet, self.path) if path)
            return f"to start again, delete {targets}"
        return (
            f"to start again, restore {store}, which had messages before, from a copy made before "
            f'{run.started}, and set "begun" to null in {self.path}'
        )
