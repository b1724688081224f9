"""Replay to a running broker through its proxy: executors send, this process keeps the ledger.

A wave is a range of the log. Its messages are distributed to tasks by source queue, so each queue
is in one task, in order. The ledger records a wave when all its messages were sent or refused. An
interrupted wave is sent again as a whole; the origin properties identify duplicates.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from jobs.replay_targets.grpc_client import GrpcClient, group_of
from jobs.replay_targets.send_loop import Manner, Row, Sender, Unreachable
from jobs.replaying.ledger import Ledger, ReplayRun, new_run
from jobs.replaying.plan import cut_short, messages_selected, planned, waves_of
from jobs.replaying.report import Report
from jobs.replaying.rows import (
    ORIGIN_PREFIX,
    OTHER_KEY,
    OTHER_TIME,
    READ,
    READ_TO_SEND,
    REFUSED_BY_BROKER,
    Rows,
    left_unread,
    looked_up,
)
from jobs.replaying.spec import ReplaySpec
from jobs.running.failures import failure
from jobs.running.provenance import files_of_store, provenance_of, sums_of
from rmq_store.files.durable import sync_folder
from rmq_store.search.log_slices import LogSlice, pieces_of

# What a task returns: a row for each refused message, and one row with its numbers.
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
SENT, RETRIES = "sent", "tried again"
_MOST_TASKS = 8
_READ_BYTES = 32 << 20
_ROWS_BACK = 512
_REASONS_TOLD = 5


class LiveReplay:
    """One call of `run`: the plan, the ledger, and the numbers so far."""

    def __init__(self, spark: SparkSession, spec: ReplaySpec, ledger: Ledger) -> None:
        self.spark, self.spec, self.ledger = spark, spec, ledger
        self.began = time.monotonic()
        before = cut_short(ledger, spec)
        self.plan = planned(spec, before)
        self.resumed = before is not None
        self.current = before or self._new_run()
        self.counts = Counter(self.current.counts)
        self.reasons: Counter[str] = Counter()
        self.stopped_by: str | None = None
        self.rows = Rows(spark, spec, self.plan)
        self.tasks = min(spark.sparkContext.defaultParallelism, _MOST_TASKS)

    def _new_run(self) -> ReplayRun:
        snapshot = self.plan.store.snapshot
        return new_run(
            asked=self.spec.asked(),
            created=False,
            ranges=self.plan.ranges,
            snapshot={"log": [snapshot.log_start, snapshot.log_end], "target_queues": []},
        )

    def run(self, should_stop: Callable[[], bool]) -> Report:
        """Send the selected messages. Returns the report.

        `should_stop` is called between waves. If the broker cannot be reached, the replay ends and
        the report says so.
        """
        if not self.resumed:
            self.ledger.begin(self.current)
        waves = waves_of(
            self.plan, self.current.next_log_offset, self.spec.wave_bytes, looked_up(self.spec)
        )
        console = Console(stderr=True)
        for number, wave in enumerate(waves, 1):
            try:
                self._send(wave)
            except Exception as error:
                # An error of Spark or of the disk. The ledger says where to continue.
                self.stopped_by = f"sending failed: {failure(error)}"
            if self.stopped_by is not None:
                break
            if console.is_terminal:
                console.print(self._progress(number, len(waves)))
            if wave.stop is not None and should_stop():
                self.stopped_by = "stopped on request"
                break
        self._record(state="done" if self.stopped_by is None else "stopped")
        return self._report()

    def _progress(self, done: int, waves: int) -> str:
        took = time.monotonic() - self.began
        left = took / done * (waves - done)
        rate = self.counts[SENT] / took
        return f"{self.counts[SENT]:,} sent, {rate:,.0f} a second, about {left:,.0f} s left"

    def _record(self, **changes: Any) -> None:
        self.current = self.ledger.record(self.current, counts=dict(self.counts), **changes)

    # --- waves -----------------------------------------------------------------------------------

    def _send(self, wave: LogSlice) -> None:
        with self.plan.store.open() as source:
            pieces = pieces_of(self.plan.ranges, wave, source.view.offset_at_log)
        frame, counted = self.rows.frame(pieces, READ_TO_SEND, _READ_BYTES, unwrap=True)
        answers = self._dealt(frame).mapInArrow(_task(self.spec, self.tasks), _ANSWER).toArrow()
        sums = answers.filter(pc.is_null(answers["reason"]))
        failures = [text for text in sums["failure"].to_pylist() if text]
        if failures:
            self.stopped_by = f"the broker could not be reached: {failures[0]}"
            return
        refused = answers.filter(pc.is_valid(answers["reason"])).select(REFUSED_COLUMNS)
        self._keep(refused, wave)
        self.counts.update({} if counted is None else counted.get)
        self.counts[SENT] += sum(sums["sent"].to_pylist())
        self.counts[RETRIES] += sum(sums["retries"].to_pylist())
        self.counts[REFUSED_BY_BROKER] += refused.num_rows
        self.reasons.update(refused["reason"].to_pylist())
        self._record(next_log_offset=wave.stop)

    def _dealt(self, frame: DataFrame) -> DataFrame:
        """The rows with each source queue in one task, in order."""
        of_queue = (F.col("properties")[ORIGIN_PREFIX + "TOPIC"], F.col("queueId"))
        dealt = frame.repartition(self.tasks, *of_queue)
        return dealt.sortWithinPartitions("commitLogOffset", "queueOffset")

    def _keep(self, refused: pa.Table, wave: LogSlice) -> None:
        """Write the refused messages: one file per wave, replaced if the wave is sent again."""
        if not refused.num_rows:
            return
        assert self.spec.failed is not None
        folder = Path(self.spec.failed)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{self.current.run_id}-{wave.start or 0:020d}.parquet"
        aside = folder / f"_{name}"
        pq.write_table(refused, aside)
        aside.rename(folder / name)
        sync_folder(folder)

    # --- result ----------------------------------------------------------------------------------

    def _report(self) -> Report:
        assert self.spec.to_broker is not None
        selected = messages_selected(self.plan, self.spec)
        counts = self.counts
        skipped = {
            name: counts[name]
            for name in (OTHER_TIME, OTHER_KEY, REFUSED_BY_BROKER)
            if counts[name]
        }
        finished = self.stopped_by is None
        problems = [f"{count:,}: {why}" for why, count in self.reasons.most_common(_REASONS_TOLD)]
        accounted = counts[SENT] + sum(skipped.values())
        if finished and counts[READ] != accounted:
            problems.append(
                f"{counts[READ]:,} messages were read, but {accounted:,} are accounted for"
            )
        unread = left_unread(self.spec)
        if finished and unread is not None and counts[READ] < selected:
            skipped[unread] = selected - counts[READ]
        elif finished and counts[READ] != selected:
            problems.append(f"{selected:,} messages were selected, but {counts[READ]:,} were read")
        read = self.plan.store
        sums = sums_of(self.spark, files_of_store(read)) if self.spec.checksums else ()
        return Report(
            job="replay",
            run_id=self.current.run_id,
            ok=finished and not problems,
            resumed=self.resumed,
            selected=selected,
            read=counts[READ],
            matched=counts[SENT] + counts[REFUSED_BY_BROKER],
            written={self.spec.to_broker: counts[SENT]},
            skipped=skipped,
            source=provenance_of(read, self.plan.ranges, self.spec.asked(), sums),
            seconds=round(time.monotonic() - self.began, 3),
            stopped_by=self.stopped_by,
            problems=tuple(problems),
        )


def _task(
    spec: ReplaySpec, tasks: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that an executor runs on its rows."""
    assert spec.to_broker is not None
    endpoints, fifo = spec.to_broker, frozenset(spec.fifo_topics)
    rate = None if spec.rate is None else spec.rate / tasks
    manner = Manner(rate=rate, patience=spec.patience)

    def send(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = rows_to_send(batches)
        first = next(rows, None)
        if first is None:
            return
        try:
            client = _connected(endpoints, fifo, manner.patience)
        except Unreachable as why:
            yield _answer([{"sent": 0, "retries": 0, "failure": str(why)}])
            return
        try:
            sender = Sender(
                client,
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


def _connected(endpoints: str, fifo: frozenset[str], patience: float) -> GrpcClient:
    """A connected client. Retries for `patience` seconds, then raises Unreachable."""
    began = time.monotonic()
    while True:
        try:
            return GrpcClient(endpoints, fifo)
        except Exception as error:
            if time.monotonic() - began > patience:
                raise Unreachable(
                    f"no connection to {endpoints} for {patience:.0f} s: {error}"
                ) from error
            time.sleep(1.0)


def rows_to_send(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Rows in the form that a client takes, with the message group of their source queue."""
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
