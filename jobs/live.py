"""The replay into a running broker, through its proxy: executors send, this process keeps the ledger.

A wave is a stretch of the log. Its messages are dealt to tasks by source queue, so each queue is in
one task, in its order. When all of a wave were sent or refused the ledger says so; a wave that was
cut short is sent again whole, and the origin properties tell what came twice.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from jobs.command import ship_jobs
from jobs.grpcclient import GrpcClient, group_of, require_client
from jobs.ledger import Ledger, LedgerError, Run, new_run
from jobs.lock import flush_folder
from jobs.provenance import files_of_store, provenance_of, sums_of
from jobs.replay_rows import ORIGIN_PREFIX, OTHER_KEY, OTHER_TIME, READ, Rows, source_options
from jobs.replay_spec import ReplaySpec, check
from jobs.report import Report
from jobs.sending import Manner, Row, Sender, Unreachable
from jobs.wording import reason_of
from rmq_store.planning import LogSlice, pieces_of
from rmq_store.topics import LMQ_PREFIX
from spark_source.options import parse_options
from spark_source.plan import cut_into_slices
from spark_source.source import pin

READ_TO_SEND = (
    "brokerName",
    "topic",
    "queueId",
    "queueOffset",
    "commitLogOffset",
    "keys",
    "uniqKey",
    "storeTimestamp",
    "reconsumeTimes",
    "properties",
    "body",
)
# What a task hands back: a row for each message that was refused, and one with its numbers.
_ANSWER = (
    "sent long, retries long, failure string, topic string, queueId int, queueOffset long, "
    "commitLogOffset long, reason string, body binary, properties map<string,string>"
)
_ANSWER_ARROW = pa.schema(
    [
        ("sent", pa.int64()),
        ("retries", pa.int64()),
        ("failure", pa.string()),
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("commitLogOffset", pa.int64()),
        ("reason", pa.string()),
        ("body", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
    ]
)
REFUSED_COLUMNS = _ANSWER_ARROW.names[3:]
SENT, REFUSED, RETRIES = "sent", "refused by the broker or its client", "tried again"
_MOST_TASKS = 8
_READ_BYTES = 32 << 20
_ROWS_BACK = 512
_REASONS_TOLD = 5


def run(
    spark: SparkSession, spec: ReplaySpec, should_stop: Callable[[], bool] = lambda: False
) -> Report:
    """Send what is selected, and say what became of it.

    `should_stop` is asked between waves. Raises StoreError where the replay is refused; a broker
    that cannot be reached ends it, and the report says so.
    """
    check(spec)
    require_client()
    ship_jobs()
    assert spec.failed is not None
    if spec.dry_run:
        return _Live(spark, spec, None).run(should_stop)
    with Ledger(spec.failed) as ledger:
        return _Live(spark, spec, ledger).run(should_stop)


class _Live:
    """One call of `run`: the plan, the ledger if it is meant, and the numbers so far."""

    def __init__(self, spark: SparkSession, spec: ReplaySpec, ledger: Ledger | None) -> None:
        self.spark, self.spec, self.ledger = spark, spec, ledger
        self.began = time.monotonic()
        before = None if ledger is None else _unfinished(ledger, spec)
        ranges = () if before is None else before.ranges
        plan = pin(parse_options(source_options(spec, ranges)))
        named = spec.topics or spec.queues or spec.offsets
        kept = (r for r in plan.ranges if named or not r.queue.topic.startswith(LMQ_PREFIX))
        self.plan = replace(plan, ranges=before.ranges if before is not None else tuple(kept))
        self.resumed = before is not None
        self.current = before or self._new_run()
        self.counts = Counter(self.current.counts)
        self.reasons: Counter[str] = Counter()
        self.stopped_by: str | None = None
        self.rows = Rows(spark, spec, self.plan)
        self.tasks = min(spark.sparkContext.defaultParallelism, _MOST_TASKS)

    def _new_run(self) -> Run:
        snapshot = self.plan.store.snapshot
        return new_run(
            asked=self.spec.asked(),
            created=False,
            ranges=self.plan.ranges,
            snapshot={"log": [snapshot.log_start, snapshot.log_end], "target_queues": []},
        )

    def run(self, should_stop: Callable[[], bool]) -> Report:
        if self.ledger is not None and not self.resumed:
            self.ledger.begin(self.current)
        waves = self._waves()
        tell = Console(stderr=True)
        for number, wave in enumerate(waves, 1):
            try:
                self._send(wave)
            except Exception as error:
                # Spark's own, or the disk's; the ledger says where to go on.
                self.stopped_by = f"sending failed: {reason_of(error)}"
            if self.stopped_by is not None:
                break
            if tell.is_terminal:
                tell.print(self._progress(number, len(waves)))
            if wave.stop is not None and should_stop():
                self.stopped_by = "it was asked to stop"
                break
        self._record(state="done" if self.stopped_by is None else "stopped")
        return self._report()

    def _progress(self, done: int, waves: int) -> str:
        took = time.monotonic() - self.began
        left = took / done * (waves - done)
        rate = self.counts[SENT] / took
        return f"{self.counts[SENT]:,} sent, {rate:,.0f} a second, about {left:,.0f} s left"

    def _record(self, **changes: Any) -> None:
        if self.ledger is not None:
            self.current = self.ledger.record(self.current, counts=dict(self.counts), **changes)

    # --- waves -----------------------------------------------------------------------------------

    def _waves(self) -> list[LogSlice]:
        if self.current.next_log_offset is None:
            return []
        rest = LogSlice(self.current.next_log_offset, None, 0)
        with self.plan.store.open() as source:
            left = pieces_of(self.plan.ranges, rest, source.offset_at_log)
            waves = cut_into_slices(source, left, self.spec.wave_bytes)
        return [replace(waves[0], start=rest.start), *waves[1:]] if waves else []

    def _send(self, wave: LogSlice) -> None:
        with self.plan.store.open() as source:
            pieces = pieces_of(self.plan.ranges, wave, source.offset_at_log)
        frame, counted = self.rows.frame(pieces, READ_TO_SEND, _READ_BYTES, unwrap=True)
        answers = self._dealt(frame).mapInArrow(_task(self.spec, self.tasks), _ANSWER).toArrow()
        told = answers.filter(pc.is_null(answers["reason"]))
        failures = [text for text in told["failure"].to_pylist() if text]
        if failures:
            self.stopped_by = f"the broker could not be reached: {failures[0]}"
            return
        refused = answers.filter(pc.is_valid(answers["reason"])).select(REFUSED_COLUMNS)
        self._keep(refused, wave)
        self.counts.update({} if counted is None else counted.get)
        self.counts[SENT] += sum(told["sent"].to_pylist())
        self.counts[RETRIES] += sum(told["retries"].to_pylist())
        self.counts[REFUSED] += refused.num_rows
        self.reasons.update(refused["reason"].to_pylist())
        self._record(next_log_offset=wave.stop)

    def _dealt(self, frame: DataFrame) -> DataFrame:
        """Each source queue in one task, in its order."""
        of_queue = (F.col("properties")[ORIGIN_PREFIX + "TOPIC"], F.col("queueId"))
        dealt = frame.repartition(self.tasks, *of_queue)
        return dealt.sortWithinPartitions("commitLogOffset", "queueOffset")

    def _keep(self, refused: pa.Table, wave: LogSlice) -> None:
        """The side output: one file a wave, whole or not there; a wave sent again replaces it."""
        if self.ledger is None or not refused.num_rows:
            return
        assert self.spec.failed is not None
        folder = Path(self.spec.failed)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{self.current.run_id}-{wave.start or 0:020d}.parquet"
        aside = folder / f"_{name}"
        pq.write_table(refused, aside)
        aside.rename(folder / name)
        flush_folder(folder)

    # --- what became of it -----------------------------------------------------------------------

    def _report(self) -> Report:
        assert self.spec.to_broker is not None
        selected = sum(map(len, self.plan.ranges))
        counts = self.counts
        skipped = {name: counts[name] for name in (OTHER_TIME, OTHER_KEY, REFUSED) if counts[name]}
        finished = self.stopped_by is None
        problems = [f"{count:,}: {why}" for why, count in self.reasons.most_common(_REASONS_TOLD)]
        accounted = counts[SENT] + sum(skipped.values())
        if finished and counts[READ] != accounted:
            problems.append(f"{counts[READ]:,} messages were read, {accounted:,} are accounted for")
        if finished and self.plan.tags is None and counts[READ] != selected:
            problems.append(f"{selected:,} messages were selected and {counts[READ]:,} were read")
        target = f"{self.spec.to_broker}{' (dry run: none was sent)' if self.spec.dry_run else ''}"
        read = self.plan.store
        sums = sums_of(self.spark, files_of_store(read)) if self.spec.checksums else ()
        return Report(
            job="replay",
            run_id=self.current.run_id,
            ok=finished and not problems,
            resumed=self.resumed,
            selected=selected,
            read=counts[READ],
            matched=counts[SENT] + counts[REFUSED],
            written={target: counts[SENT]},
            skipped=skipped,
            source=provenance_of(read, self.plan.ranges, self.spec.asked(), sums),
            seconds=round(time.monotonic() - self.began, 3),
            stopped_by=self.stopped_by,
            problems=tuple(problems),
        )


def _unfinished(ledger: Ledger, spec: ReplaySpec) -> Run | None:
    """The run that was cut short; a LedgerError where it was asked for something else, or is done."""
    if ledger.finished_like(spec.asked()) is not None:
        raise LedgerError(
            ledger.path,
            reason="this very replay has been sent",
            advice="Nothing is left to do; to send it all again name another --failed folder",
        )
    before = ledger.unfinished
    if before is not None and before.asked != spec.asked():
        raise LedgerError(
            ledger.path,
            reason="an unfinished replay with this --failed folder was asked for something else",
            expected=str(before.asked),
            actual=str(spec.asked()),
            advice="Finish it with the options it had, or name another --failed folder",
        )
    return before


def _task(
    spec: ReplaySpec, tasks: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What an executor does with its rows."""
    assert spec.to_broker is not None
    endpoints, fifo, connect = spec.to_broker, frozenset(spec.fifo_topics), not spec.dry_run
    rate = None if spec.rate is None or spec.dry_run else spec.rate / tasks
    manner = Manner(rate=rate, patience=spec.patience)

    def send(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = _rows_of(batches)
        first = next(rows, None)
        if first is None:
            return
        try:
            client = _connected(endpoints, fifo, connect, manner.patience)
        except Unreachable as why:
            yield _answer([{"sent": 0, "retries": 0, "failure": str(why)}])
            return
        try:
            sender = Sender(
                client if connect else _Unsent(client),
                manner,
                lambda row: row["messageGroup"] if row["topic"] in fifo else None,
            )
            back: list[Mapping[str, Any]] = []
            for refused in sender.send(_chained(first, rows)):
                back.append({name: refused[name] for name in REFUSED_COLUMNS})
                if len(back) == _ROWS_BACK:
                    yield _answer(back)
                    back = []
            done = sender.outcome
            yield _answer(
                [*back, {"sent": done.sent, "retries": done.retries, "failure": done.failure}]
            )
        finally:
            client.close()

    return send


class _Unsent:
    """Prepares as a client does, and sends nothing."""

    def __init__(self, client: GrpcClient) -> None:
        self.prepare = client.prepare
        self.close = client.close

    def send(self, message: Any) -> None:
        """Nothing."""


def _connected(endpoints: str, fifo: frozenset[str], connect: bool, patience: float) -> GrpcClient:
    """A client; tried again while the broker is away. Raises Unreachable."""
    began = time.monotonic()
    while True:
        try:
            return GrpcClient(endpoints, fifo, connect=connect)
        except Exception as error:
            if time.monotonic() - began > patience:
                raise Unreachable(
                    f"no connection to {endpoints} for {patience:.0f} s: {error}"
                ) from error
            time.sleep(1.0)


def _rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        for row in batch.to_pylist():
            properties = dict(row["properties"])
            topic = properties[ORIGIN_PREFIX + "TOPIC"]
            group = group_of(row["brokerName"], topic, row["queueId"])
            yield {**row, "properties": properties, "messageGroup": group}


def _chained(first: Row, rest: Iterator[Row]) -> Iterator[Row]:
    yield first
    yield from rest


def _answer(rows: list[Mapping[str, Any]]) -> pa.RecordBatch:
    whole = [
        {**row, "properties": list(row["properties"].items())} if "properties" in row else row
        for row in rows
    ]
    return pa.RecordBatch.from_pylist(whole, schema=_ANSWER_ARROW)
