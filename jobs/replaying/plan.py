"""What a replay selects and what is left of it: the same for every target, and for a dry run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jobs.replaying.ledger import Ledger, LedgerError, Run
from jobs.replaying.rows import source_options
from jobs.replaying.spec import ReplaySpec
from jobs.running.target_lock import has_content
from rmq_store import MessageStore, StoreSnapshot
from rmq_store.format.queues import QueueSlice
from rmq_store.format.topics import LMQ_PREFIX
from rmq_store.query.key_plan import plan_keys
from rmq_store.query.log_slices import LogSlice, joined, pieces_of
from spark_source.options.parse import parse_options
from spark_source.planning.partitions import cut_into_slices
from spark_source.planning.query_plan import ReadPlan
from spark_source.source import pin

OFFSETS_COUNTED_AT_A_TIME = 1 << 20


def planned(spec: ReplaySpec, before: Run | None) -> ReadPlan:
    """The store pinned, and the ranges: those of the run that was cut short, where there is one.

    Light queues only where they were named: their records come with their own topic. Raises
    StoreError for what cannot be selected.
    """
    if before is not None:
        left, snapshot = _still_to_read(spec, before)
        plan = pin(parse_options(source_options(spec, left)))
        return replace(plan, ranges=before.ranges, store=replace(plan.store, snapshot=snapshot))
    plan = pin(parse_options(source_options(spec)))
    named = spec.topics or spec.queues or spec.offsets
    kept = (r for r in plan.ranges if named or not r.queue.topic.startswith(LMQ_PREFIX))
    return replace(plan, ranges=tuple(kept))


def _still_to_read(spec: ReplaySpec, before: Run) -> tuple[Sequence[QueueSlice], StoreSnapshot]:
    """What of the ranges of a run that was cut short has to be there still, since the rest may
    expire; and what all of its queues have now."""
    start = before.next_log_offset
    again = spec.to_parquet is not None and before.parquet != "done"  # written anew as a whole
    with MessageStore.open(
        spec.source, broker_name=spec.broker_name, broker_conf=spec.broker_conf
    ) as source:
        there = set(source.queues())
        snapshot = source.snapshot().only(r.queue for r in before.ranges if r.queue in there)
        if not start or again or len(snapshot.queues) < len(before.ranges):
            return before.ranges, snapshot
        left = pieces_of(before.ranges, LogSlice(start, None, 0), source.view.offset_at_log)
    return left or before.ranges, snapshot


def left_of(plan: ReadPlan, start: int | None) -> list[QueueSlice]:
    """What of the ranges stands at or behind a CommitLog offset of the source; None: nothing."""
    if start is None:
        return []
    with plan.store.open() as source:
        return list(pieces_of(plan.ranges, LogSlice(start, None, 0), source.view.offset_at_log))


def waves_of(
    plan: ReadPlan, start: int | None, wave_bytes: int, keys: Sequence[str] = ()
) -> list[LogSlice]:
    """The same as stretches of the log of about so many selected bytes.

    Of `keys` no more is counted than where messages with one of them can be, by the index: what
    lies between is not read.
    """
    left = left_of(plan, start)
    with plan.store.open() as source:
        found = plan_keys(source, left, keys) if keys else None
        if found is not None:
            left = joined((*found.hits, *found.beside_hits(source.view.offset_at_log)))
        waves = cut_into_slices(source, left, wave_bytes) if left else []
    return [replace(waves[0], start=start), *waves[1:]] if waves else []


def messages_selected(plan: ReadPlan, spec: ReplaySpec) -> int:
    """How many messages are to be read; to a store or to Parquet an inner batch goes as one."""
    if spec.to_broker is not None:
        return sum(map(len, plan.ranges))
    return _entries_selected(plan)


def _entries_selected(plan: ReadPlan) -> int:
    """How many queue entries the ranges have."""
    states = plan.store.snapshot.queues
    count = sum(len(r) for r in plan.ranges if not states[r.queue].batch)
    batched = [part for part in plan.ranges if states[part.queue].batch]
    with plan.store.open() as source:
        # An inner batch is one entry, and takes several queue offsets.
        for part in batched:
            for start in range(part.start, part.stop, OFFSETS_COUNTED_AT_A_TIME):
                stop = min(part.stop, start + OFFSETS_COUNTED_AT_A_TIME)
                entries = source.entries(part.queue, start, stop)
                count += int((entries.offset >= start).sum())
    return count


# --- what is refused --------------------------------------------------------------------------------


def ledger_place(spec: ReplaySpec) -> str:
    """Beside what the ledger of a replay stands."""
    return spec.failed or spec.to_store or spec.to_parquet or ""


def cut_short(ledger: Ledger, spec: ReplaySpec) -> Run | None:
    """The run to go on with. Raises LedgerError where it was asked for something else, or is done."""
    before, asked = ledger.unfinished, spec.asked()
    live = spec.to_broker is not None
    if before is None:
        done = ledger.finished_like(asked)
        if done is not None:
            reason = (
                f"has been sent by {done.updated}"
                if live
                else f"is in the target since {done.updated}"
            )
            more = (
                "to send it all again name another --failed folder"
                if live
                else "for a second copy replay into another target"
            )
            raise LedgerError(
                ledger.path,
                reason=f"this very replay {reason}",
                advice=f"Nothing is left to do; {more}",
            )
        return None
    if asked != before.asked:
        other = sorted(name for name in asked if asked[name] != before.asked.get(name))
        raise LedgerError(
            ledger.path,
            reason="an unfinished replay into this target was asked for something else",
            expected=", ".join(f"{name}={before.asked.get(name)!r}" for name in other),
            actual=", ".join(f"{name}={asked[name]!r}" for name in other),
            advice="Finish it with the options it had, or "
            + ("name another --failed folder" if live else "give --restart to begin anew"),
        )
    return before


def refuse_to_mix(spec: ReplaySpec) -> None:
    """Raise LedgerError where a new run would add to what is in the target, and is not to."""
    to_store, to_parquet = spec.to_store, spec.to_parquet
    if to_store is not None and has_content(to_store) and not spec.append:
        raise LedgerError(
            Path(to_store),
            reason="the target is there already, and no unfinished replay has left it",
            advice="Give --append to add to it, or name a new folder",
        )
    if to_parquet is not None and has_content(to_parquet):
        raise LedgerError(
            Path(to_parquet),
            reason="the Parquet target is there already",
            advice="Name a new folder; files are not added to one",
        )
