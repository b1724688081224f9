"""Replay to a running broker through its proxy: executors send, this process keeps the journal.

A wave is a range of the log. Its messages are distributed to tasks by source queue, so each queue
is in one task, in order. The journal records a wave when all its messages were sent or refused. An
interrupted wave is sent again as a whole; the origin properties identify duplicates.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rmq_store import MessageStore
from rmq_store.files.durable_files import sync_folder, sync_path
from rmq_store.snapshot.ranges import LogSlice
from rmq_store.text.progress import Progress
from rmqstore_jobs.replay_targets import sending
from rmqstore_jobs.replay_targets.replay_call import ReplayCall, ReplayReport, most_common
from rmqstore_jobs.replay_targets.sending import BrokerAccess, Denied, GrpcClient, Row, Unreachable
from rmqstore_jobs.replaying.plan import ReplayJournal, waves_of
from rmqstore_jobs.replaying.replay_question import (
    ORIGIN_PREFIX,
    OTHER_KEY,
    OTHER_TIME,
    READ,
    READ_TO_SEND,
    REFUSED_BY_BROKER,
)
from rmqstore_jobs.replaying.replay_spec import ReplaySpec
from rmqstore_jobs.running.failures import failure
from rmqstore_jobs.running.source_options import pieces_in
from rmqstore_jobs.running.spark_engine import Session, ShouldStop, parallel_shares

REFUSED = pa.schema(
    {
        "topic": pa.string(),
        "queueId": pa.int32(),
        "queueOffset": pa.int64(),
        "commitLogOffset": pa.int64(),
        "reason": pa.string(),
        "body": pa.binary(),
        "properties": pa.map_(pa.string(), pa.string()),
    }
)
SENT, RETRIES = "sent", "tried again"
_MOST_TASKS = 8
_WAVE_BYTES = 8 << 20  # takes seconds, and at most one wave is sent twice after a crash


@dataclass(frozen=True, slots=True)
class Sent:
    """What a task did: messages sent, retries, why it ended early, and refused rows as REFUSED."""

    messages: int
    retries: int
    failure: str | None
    refused: pa.Table


class LiveReplay(ReplayCall):
    """A replay to a broker. If that cannot be reached, the replay ends and the report says so."""

    refused_as = REFUSED_BY_BROKER

    def __init__(self, spark: Session, spec: ReplaySpec, journal: ReplayJournal) -> None:
        super().__init__(spark, spec, journal)
        self.reasons: Counter[str] = Counter()
        self.tasks = min(parallel_shares(spark), _MOST_TASKS)
        self.access = BrokerAccess.of(spec)

    def run(self, should_stop: ShouldStop) -> ReplayReport:
        """Send the remaining messages. Returns the report. `should_stop` is called between waves."""
        self._begin()
        wave_bytes = self.spec.wave_bytes or _WAVE_BYTES
        waves = waves_of(self.read, self.current.next_log_offset, wave_bytes)
        with Progress("replay", sum(wave.selected_bytes for wave in waves)) as progress:
            for wave in waves:
                try:
                    self._send(wave)
                except Exception as error:
                    # An error of Spark or of the disk. The journal says where to continue.
                    self.stopped_by = f"sending failed: {failure(error)}"
                if self.stopped_by is not None:
                    break
                progress(wave.selected_bytes)
                if wave.stop is not None and should_stop():
                    self.stopped_by = "stopped on request"
                    break
        self._end()
        sent = self.counts[SENT]
        arrived = {str(self.spec.to_broker): sent}
        return self._report(sent + self.counts[REFUSED_BY_BROKER], arrived, self._problems())

    def _send(self, wave: LogSlice) -> None:
        send = partial(_send_rows, self.spec, self.access, self.tasks)
        sent = self._handled(pieces_in(self.read, wave), send, READ_TO_SEND, tasks=self.tasks)
        failures = [part.failure for part in sent.parts if part.failure]
        if failures:
            self.stopped_by = f"the broker could not be reached: {failures[0]}"
            return
        refused = pa.concat_tables([REFUSED.empty_table(), *(part.refused for part in sent.parts)])
        self._keep(refused, wave)
        self.counts.update(sent.counts)
        self.counts[SENT] += sum(part.messages for part in sent.parts)
        self.counts[RETRIES] += sum(part.retries for part in sent.parts)
        self.counts[REFUSED_BY_BROKER] += refused.num_rows
        self.reasons.update(refused["reason"].to_pylist())
        self._record(next_log_offset=wave.stop)

    def _keep(self, refused: pa.Table, wave: LogSlice) -> None:
        """One file per wave, replaced if the wave is sent again."""
        if not refused.num_rows:
            return
        folder = Path(self.spec.journal_target)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{self.current.run_id}-{wave.start or 0:020d}.parquet"
        aside = folder / f"_{name}"
        pq.write_table(refused, aside)
        sync_path(aside)
        aside.rename(folder / name)
        sync_folder(folder)

    def _problems(self) -> Iterator[str]:
        yield from most_common(self.reasons)
        accounted = (SENT, OTHER_TIME, OTHER_KEY, REFUSED_BY_BROKER)
        known, read = sum(self.counts[name] for name in accounted), self.counts[READ]
        if self.stopped_by is None and read != known:
            yield f"{read:,} messages were read, but {known:,} are accounted for"


def _send_rows(
    spec: ReplaySpec,
    access: BrokerAccess,
    tasks: int,
    store: MessageStore,
    number: int,
    batches: Iterator[pa.RecordBatch],
) -> Sent:
    rows = rows_to_send(batches)
    first = next(rows, None)
    if first is None:
        return Sent(0, 0, None, REFUSED.empty_table())
    fifo = set(spec.fifo_topics)
    try:
        client = _connected(str(spec.to_broker), fifo, access, spec.patience)
    except (Unreachable, Denied) as error:
        return Sent(0, 0, str(error), REFUSED.empty_table())
    sender = sending.Sender(
        client,
        lambda row: row["messageGroup"] if row["topic"] in fifo else None,
        None if spec.rate is None else spec.rate / tasks,
        spec.patience,
    )
    with closing(client):
        refused = [
            {**row, "properties": list(row["properties"].items())}
            for row in sender.send(chain([first], rows))
        ]
    table = pa.Table.from_pylist(refused, schema=REFUSED)
    return Sent(sender.sent, sender.retries, sender.failure, table)


def _connected(endpoints: str, fifo: set[str], access: BrokerAccess, patience: float) -> GrpcClient:
    """A connected client. Retries for `patience` seconds, then raises Unreachable; or Denied."""
    began = time.monotonic()
    while True:
        try:
            return GrpcClient(endpoints, fifo, access)
        except Denied:
            raise
        except Exception as error:
            if time.monotonic() - began > patience:
                raise Unreachable(
                    f"no connection to {endpoints} for {patience:.0f} s: "
                    f"{access.hidden(str(error))}"
                ) from None
            time.sleep(1.0)


def rows_to_send(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Rows in the form that a client takes, with the message group of their source queue."""
    for batch in batches:
        for row in batch.to_pylist():
            properties = dict(row["properties"])
            topic = properties[ORIGIN_PREFIX + "TOPIC"]
            group = sending.group_of(row["brokerName"], topic, row["queueId"])
            yield {**row, "properties": properties, "messageGroup": group}
