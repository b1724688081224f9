"""Replay to a running broker through its proxy: executors send by the official client, this process keeps the
journal.

A wave is a range of the log. Its messages are distributed to tasks by source queue, so each queue
is in one task, in order. The journal records a wave when all its messages were sent or refused. An
interrupted wave is sent again as a whole; the origin properties identify duplicates.

A lane is a thread that sends one message at a time. Messages that must stay in order go through one
lane; others are distributed in turn. Messages that the client or broker refuses are returned with
the reason. If the broker cannot be reached for too long, all lanes end.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import math
import os
import random
import shutil
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rmq_store.errors import InvalidArgumentError, OsErrorsOf
from rmq_store.files.durable_files import sync_folder, sync_path
from rmq_store.format.byte_layout import CRC_PROPERTY, KEY_SEPARATOR, Property
from rmq_store.reading.store_reader import StoreReader
from rmq_store.scan.parse_options import Secret, reveal
from rmq_store.snapshot.ranges import LogSlice
from rmq_store.text.progress import Progress
from rmqstore_jobs.replay_targets.replay_call import ReplayCall, ReplayReport, most_common
from rmqstore_jobs.replaying.plan import ReplayJournal, waves_of
from rmqstore_jobs.replaying.replay_question import (
    ORIGIN_PREFIX,
    OTHER_KEY,
    OTHER_TIME,
    READ,
    READ_TO_SEND,
    REFUSED_BY_BROKER,
)
from rmqstore_jobs.replaying.replay_spec import DEFAULT_PATIENCE, ReplaySpec
from rmqstore_jobs.running.failures import failure
from rmqstore_jobs.running.source_options import pieces_in
from rmqstore_jobs.running.spark_engine import Session, ShouldStop, parallel_shares

ACCESS_KEY, SECRET_KEY = "RMQSTORE_ACCESS_KEY", "RMQSTORE_SECRET_KEY"
"""Environment variables of the driver. Options would be visible in the list of processes."""

_ROOTS = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"  # read by gRPC once in a process
_TRUSTED: list[bytes] = []  # what it read there; b"" for its own
_NONE = Secret("")


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """Travels from the driver to the executors. Prints no credentials. `roots`: the certificates, in PEM,
    that sign the broker's; None for those that gRPC brings along."""

    tls: bool = False
    roots: bytes | None = None
    access_key: Secret = _NONE
    secret_key: Secret = _NONE

    @classmethod
    def of(cls, spec: ReplaySpec) -> BrokerAccess:
        """The access that a spec and the environment give.

        Raises InvalidArgumentError if only one half of the credentials is set, and MissingFileError
        or AccessError for a file of certificates that cannot be read.
        """
        keys = [os.environ.get(name, "") for name in (ACCESS_KEY, SECRET_KEY)]
        if any(keys) and not all(keys):
            raise InvalidArgumentError(
                reason="the environment has one half of the broker's credentials",
                expected=f"{ACCESS_KEY} and {SECRET_KEY}, or neither",
            )
        roots, path = None, spec.tls_ca
        if path is not None:
            with OsErrorsOf(path, "reading --tls-ca"):
                roots = Path(path).read_bytes()
            if b"-----BEGIN CERTIFICATE-----" not in roots:
                reason = "--tls-ca has no certificate"
                raise InvalidArgumentError(path, reason=reason, expected="certificates in PEM")
        return cls(spec.tls, roots, *map(Secret, keys))

    @property
    def credentials(self) -> tuple[str, str]:
        """Access key and secret key themselves; empty without credentials."""
        return reveal(self.access_key), reveal(self.secret_key)

    def hidden(self, text: str) -> str:
        """The text of somebody else's error without the credentials."""
        for value in self.credentials:
            text = text.replace(value, "***") if value else text
        return text

    def trust(self) -> None:
        """Make gRPC trust only `roots` in this process, before its first connection.

        The official client takes no certificates of its own. Raises Denied if this process trusts
        others already, because gRPC looks only once.
        """
        wanted = self.roots or b""
        if not self.tls or wanted in _TRUSTED:
            return
        if _TRUSTED:
            raise Denied(
                "this process trusts other certificates already; replay to a broker of another CA "
                "in another process"
            )
        if wanted:
            folder = Path(tempfile.mkdtemp(prefix="rmqstore-roots-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            path = folder / "roots.pem"
            path.write_bytes(wanted)
            os.environ[_ROOTS] = str(path)
        _TRUSTED.append(wanted)


Row = dict[str, Any]

_WAITING = 64  # rows that wait for each lane
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0  # seconds


class RefusedMessage(Exception):
    """The message can never be sent; the text is the reason."""


class Unreachable(Exception):
    """The message may be sent later; the text is the reason of this failure."""


class Denied(Exception):
    """No message can be sent, now or later; the text is the reason."""


class Pacer:
    """Spaces calls evenly at a rate."""

    def __init__(self, rate: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._step = 0.0 if rate is None else 1.0 / rate
        self._clock = clock
        self._next = clock()
        self._lock = threading.Lock()

    def delay(self) -> float:
        """Seconds to wait before the next message."""
        with self._lock:
            now = self._clock()
            at = max(now, self._next)
            self._next = at + self._step
        return at - now


@dataclass
class Sender:
    """Sends rows through a client, as GrpcClient. Iterate over what `send_yielding_refused` gives.

    `rate`: messages per second. `patience`: seconds to retry one message. `failure`: why sending ended early.
    """

    client: Any
    ordered: Callable[[Row], Any | None]  # rows with the same value stay in order; None: no order
    rate: float | None = None
    patience: float = DEFAULT_PATIENCE
    lanes: int = 8
    sent: int = 0
    retries: int = 0
    failure: str | None = None

    def __post_init__(self) -> None:
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._refused: deque[Row] = deque()
        self._pacer = Pacer(self.rate)
        self._room = threading.Semaphore(self.lanes * _WAITING)

    def send_yielding_refused(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Send all rows. Yields each refused row with its `reason`."""
        lanes = [ThreadPoolExecutor(1) for _ in range(self.lanes)]
        try:
            for turn, row in enumerate(rows):
                together = self.ordered(row)
                number = turn if together is None else hash(together)
                self._room.acquire()
                if self._ended.is_set():
                    break
                lanes[number % self.lanes].submit(self._send_one, row)
                yield from self._taken()
        except BaseException:
            self._ended.set()
            raise
        finally:
            for lane in lanes:
                lane.shutdown()
        yield from self._taken()

    def _taken(self) -> Iterator[Row]:
        while self._refused:
            yield self._refused.popleft()

    def _send_one(self, row: Row) -> None:
        try:
            sent = self._delivered(self.client.prepare(row))
            with self._lock:
                self.sent += sent
        except RefusedMessage as why:
            self._refused.append({**row, "reason": str(why)})
        except Exception as error:  # if one lane ends, all must end, else rows would be lost
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._room.release()

    def _delivered(self, message: Any) -> bool:
        """Send with retries. Returns False if this lane or another one gave up."""
        began, pause = math.inf, _FIRST_PAUSE
        # Each attempt counts for the rate limit.
        while not self._ended.wait(self._pacer.delay()):
            began = min(began, time.monotonic())
            try:
                self.client.send(message)
                return True
            except Denied as why:
                self._fail(str(why))
            except Unreachable as why:
                if time.monotonic() - began > self.patience:
                    self._fail(f"tried for {self.patience:.0f} s: {why}")
                    break
                with self._lock:
                    self.retries += 1
                # Random, so that not all lanes retry at the same time.
                self._ended.wait(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, _LONGEST_PAUSE)
        return False

    def _fail(self, why: str) -> None:
        with self._lock:
            self.failure = self.failure or why
        self._ended.set()


# --- the client ------------------------------------------------------------------------------------


MESSAGE_GROUP_LIMIT = 64  # characters; ProxyConfig#maxMessageGroupSize
REQUEST_SECONDS = 10

# Properties that clients and brokers write during sending (MessageConst). They describe the old
# copy, the new one gets its own, and a client may not send them. KEYS and TAGS go as keys and tag.
OF_THE_WAY = {
    *(Property.KEYS, Property.TAGS, Property.UNIQ_KEY, Property.DELAY, CRC_PROPERTY),
    *(Property.INNER_NUM, Property.INNER_BASE),
    *(Property.INNER_MULTI_DISPATCH, Property.INNER_MULTI_QUEUE_OFFSET),
    *("WAIT", "CLUSTER", "MSG_REGION", "TRACE_ON", "PGROUP", "BORN_HOST", "__BORNHOST"),
    *("BORN_TIMESTAMP", "INSTANCE_ID", "EXTEND_UNIQ_INFO", "MIN_OFFSET", "MAX_OFFSET"),
    *("REAL_TOPIC", "REAL_QID", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME"),
    *("MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"),
    *("TRAN_MSG", "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES"),
    *("CHECK_IMMUNITY_TIME_IN_SECONDS", "__transactionId__", "__SHARDINGKEY", "__REALTOPIC"),
    *("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_ENQUEUE_MS"),
    *("TIMER_DEQUEUE_MS", "TIMER_OUT_MS", "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY"),
    *("TIMER_DELAY_LEVEL", "1ST_POP_TIME", "POP_CK", "POP_CK_OFFSET"),
}


def require_client() -> None:
    """Raise InvalidArgumentError if the client is not installed."""
    if find_spec("rocketmq") is None:
        raise InvalidArgumentError(
            reason="the gRPC client is not installed",
            advice="pip install 'rmqstore[live]', on executors too",
        )


def group_of(broker: str, topic: str, queue_id: int) -> str:
    """The message group of a source queue: its name, shortened to the broker's limit."""
    whole = f"{broker}/{topic}/{queue_id}"
    if len(whole) <= MESSAGE_GROUP_LIMIT:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:16]
    return f"{topic[: MESSAGE_GROUP_LIMIT - 32]}~{digest}/{queue_id}"


def user_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of a stored message that are sent."""
    return {name: value for name, value in properties.items() if name not in OF_THE_WAY}


class GrpcClient:
    """A producer at a proxy. `fifo`: target topics whose messages have a message group.

    With `connect` False it only prepares messages, which shows what the client would refuse. The
    client signs each request with the credentials of `access`.
    """

    def __init__(
        self,
        endpoints: str,
        fifo: Collection[str],
        access: BrokerAccess = BrokerAccess(),
        *,
        connect: bool = True,
    ) -> None:
        """Raises Denied if the broker cannot be trusted, or does not trust this client."""
        self._endpoints, self._fifo, self._access = endpoints, fifo, access
        if connect:
            access.trust()
        self._rocketmq = rocketmq = _imported()
        self._producer: Any = None
        if connect:
            credentials = rocketmq.Credentials(*access.credentials)
            self._configuration = rocketmq.ClientConfiguration(
                endpoints, credentials, request_timeout=REQUEST_SECONDS
            )
            self._producer = rocketmq.Producer(self._configuration, [], tls_enable=access.tls)
            self._producer.startup()

    def prepare(self, row: Row) -> Any:
        """The client's message. Raises RefusedMessage with the client's own reason."""
        from rocketmq.v5.exception import IllegalArgumentException

        message, where = self._rocketmq.Message(), ""
        try:
            message.topic = row["topic"]
            message.body = row["body"]
            properties = row["properties"]
            for key in filter(None, (properties.get(Property.KEYS) or "").split(KEY_SEPARATOR)):
                message.keys = key
            if Property.TAGS in properties:
                message.tag = properties[Property.TAGS]
            if row["topic"] in self._fifo:
                message.message_group = row["messageGroup"]
            for name, value in user_properties(properties).items():
                where = f"property {name!r}: "
                message.add_property(name, value)
        except IllegalArgumentException as why:
            raise RefusedMessage(f"the client: {where}{why}") from None
        return message

    def send(self, message: Any) -> None:
        """Send a message and wait for the answer. Raises RefusedMessage, Unreachable, Denied."""
        from rocketmq.v5 import exception as errors

        for_good = (
            *(errors.BadRequestException, errors.RequestHeaderFieldsTooLargeException),
            *(errors.PayloadEmptyException, errors.PayloadTooLargeException),
        )
        try:
            self._producer.send(message)
        except errors.IllegalArgumentException as why:
            raise RefusedMessage(f"the client: {why}") from None
        except for_good as why:
            raise RefusedMessage(f"the broker: {why}") from None
        except Exception as why:
            denied = self._denial(message.topic)
            if denied is not None:
                raise denied from None
            more = "" if self._access.tls else " (if the proxy wants TLS, give --tls)"
            said = self._access.hidden(f"{type(why).__name__}: {why}")
            raise Unreachable(said + more) from None

    def _denial(self, topic: str) -> Denied | None:
        """Why the proxy cannot be used at all; None if trying again may help. The client only logs it."""
        import grpc
        from rocketmq.grpc_protocol import Code, MessagingServiceStub, QueryRouteRequest
        from rocketmq.v5.util import Signature

        named = self._configuration.rpc_endpoints
        request = QueryRouteRequest(endpoints=named.endpoints)
        request.topic.name = topic
        signed = Signature.metadata(self._configuration, self._producer.client_id)
        channel = (
            grpc.secure_channel(named.facade, grpc.ssl_channel_credentials())
            if self._access.tls
            else grpc.insecure_channel(named.facade)
        )
        with channel:
            try:
                ask = MessagingServiceStub(channel).QueryRoute
                status = ask(request, metadata=signed, timeout=REQUEST_SECONDS).status
            except grpc.RpcError as error:
                return self._unprotected(str(error.details()))
        if status.code not in (Code.UNAUTHORIZED, Code.FORBIDDEN):
            return None
        said = self._access.hidden(status.message)
        signs = any(self._access.credentials)
        if status.code == Code.FORBIDDEN and signs:
            return Denied(f"the user of {ACCESS_KEY} may not send to topic {topic!r}: {said}")
        what = "does not accept the credentials" if signs else "wants credentials"
        return Denied(f"the proxy {what}: {said} (set {ACCESS_KEY} and {SECRET_KEY})")

    def _unprotected(self, details: str) -> Denied | None:
        if "CERTIFICATE_VERIFY_FAILED" in details or "not match" in details:
            return Denied(
                f"the certificate of {self._endpoints} is not trusted, or is for another host: give "
                f"--tls-ca the certificates that sign it ({details})"
            )
        if "WRONG_VERSION_NUMBER" in details:
            return Denied(f"{self._endpoints} answers without TLS: leave out --tls ({details})")
        return None

    def close(self) -> None:
        """Close the producer."""
        if self._producer is not None:
            self._producer.shutdown()


def _imported() -> Any:
    """The client's module. Its import opens a log in the home folder, which is not wanted there."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="rmqstore-client-") as folder:
        os.environ["HOME"] = folder
        try:
            import rocketmq
        finally:
            os.environ.pop("HOME")
            os.environ.update(before)
        log = logging.getLogger("rocketmq-python-client")
        for handler in list(log.handlers):
            log.removeHandler(handler)
            handler.close()
        log.addHandler(logging.NullHandler())  # without one, warnings go to stderr
    return rocketmq


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
class SendResult:
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
    store: StoreReader,
    number: int,
    batches: Iterator[pa.RecordBatch],
) -> SendResult:
    rows = rows_to_send(batches)
    first = next(rows, None)
    if first is None:
        return SendResult(0, 0, None, REFUSED.empty_table())
    fifo = set(spec.fifo_topics)
    try:
        client = _connected(str(spec.to_broker), fifo, access, spec.patience)
    except (Unreachable, Denied) as error:
        return SendResult(0, 0, str(error), REFUSED.empty_table())
    sender = Sender(
        client,
        lambda row: row["messageGroup"] if row["topic"] in fifo else None,
        None if spec.rate is None else spec.rate / tasks,
        spec.patience,
    )
    with closing(client):
        refused = [
            {**row, "properties": list(row["properties"].items())}
            for row in sender.send_yielding_refused(chain([first], rows))
        ]
    table = pa.Table.from_pylist(refused, schema=REFUSED)
    return SendResult(sender.sent, sender.retries, sender.failure, table)


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
            group = group_of(row["brokerName"], topic, row["queueId"])
            yield {**row, "properties": properties, "messageGroup": group}
