"""The official gRPC client of RocketMQ for `sender`. Only executors import it."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from typing import Any

from rmq_store.errors import InvalidArgumentError
from rmq_store.format.layout import CRC_PROPERTY, KEY_SEPARATOR, Property
from rmqstore_jobs.replay_targets.retrying_sender import Refused, Row, Unreachable

MESSAGE_GROUP_LIMIT = 64  # characters; ProxyConfig#maxMessageGroupSize
REQUEST_SECONDS = 10

# Properties that clients and brokers write during sending (MessageConst). They describe the old
# copy, the new one gets its own, and a client may not send them.
OF_THE_WAY = frozenset(
    (
        Property.KEYS,  # sent as the keys
        Property.TAGS,  # sent as the tag
        Property.UNIQ_KEY,
        Property.DELAY,
        Property.INNER_NUM,
        Property.INNER_BASE,
        Property.INNER_MULTI_DISPATCH,
        Property.INNER_MULTI_QUEUE_OFFSET,
        CRC_PROPERTY,
        "WAIT",
        "CLUSTER",
        "MSG_REGION",
        "TRACE_ON",
        "PGROUP",
        "BORN_HOST",
        "__BORNHOST",
        "BORN_TIMESTAMP",
        "INSTANCE_ID",
        "EXTEND_UNIQ_INFO",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "REAL_TOPIC",
        "REAL_QID",
        "RETRY_TOPIC",
        "ORIGIN_MESSAGE_ID",
        "RECONSUME_TIME",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "TRAN_MSG",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "TRANSACTION_CHECK_TIMES",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "__transactionId__",
        "__SHARDINGKEY",
        "__REALTOPIC",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_OUT_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_DEL_UNIQKEY",
        "TIMER_DELAY_LEVEL",
        "1ST_POP_TIME",
        "POP_CK",
        "POP_CK_OFFSET",
    )
)


def require_client() -> None:
    """Raise InvalidArgumentError if the client is not installed."""
    if find_spec("rocketmq") is None:
        raise InvalidArgumentError(
            None,
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

    With `connect` False it only prepares messages, which shows what the client would refuse.
    """

    def __init__(self, endpoints: str, fifo: Collection[str], *, connect: bool = True) -> None:
        self._rocketmq = _imported()
        self._fifo = frozenset(fifo)
        self._endpoints = endpoints
        self._producer = self._started() if connect else None

    def _started(self) -> Any:
        rocketmq = self._rocketmq
        configuration = rocketmq.ClientConfiguration(
            self._endpoints, rocketmq.Credentials(), request_timeout=REQUEST_SECONDS
        )
        producer = rocketmq.Producer(configuration, [], tls_enable=False)
        producer.startup()
        return producer

    def prepare(self, row: Row) -> Any:
        """The client's message. Raises Refused with the client's own reason."""
        from rocketmq.v5.exception import IllegalArgumentException

        message = self._rocketmq.Message()
        try:
            message.topic = row["topic"]
            message.body = row["body"]
            properties = row["properties"]
            for key in (properties.get(Property.KEYS) or "").split(KEY_SEPARATOR):
                if key:
                    message.keys = key
            if Property.TAGS in properties:
                message.tag = properties[Property.TAGS]
            for name, value in user_properties(properties).items():
                _add(message, name, value)
            if row["topic"] in self._fifo:
                message.message_group = row["messageGroup"]
        except IllegalArgumentException as why:
            raise Refused(f"the client: {why}") from None
        return message

    def send(self, message: Any) -> None:
        """Send a message and wait for the answer. Raises Refused, Unreachable."""
        from rocketmq.v5 import exception as errors

        for_good = (
            errors.BadRequestException,
            errors.IllegalArgumentException,
            errors.PayloadEmptyException,
            errors.PayloadTooLargeException,
            errors.RequestHeaderFieldsTooLargeException,
        )
        assert self._producer is not None
        try:
            self._producer.send(message)
        except errors.IllegalArgumentException as why:
            raise Refused(f"the client: {why}") from None
        except for_good as why:
            raise Refused(f"the broker: {why}") from None
        except Exception as why:
            raise Unreachable(f"{type(why).__name__}: {why}") from why

    def close(self) -> None:
        """Close the producer."""
        if self._producer is not None:
            self._producer.shutdown()


def _add(message: Any, name: str, value: str) -> None:
    from rocketmq.v5.exception import IllegalArgumentException

    try:
        message.add_property(name, value)
    except IllegalArgumentException as why:
        raise Refused(f"the client: property {name!r}: {why}") from None


def _imported() -> Any:
    """The client's module. Its import opens a log in the home folder, so use a temporary one."""
    home = os.environ.get("HOME")
    os.environ["HOME"] = tempfile.mkdtemp(prefix="rmqstore-client-")
    try:
        import rocketmq
    finally:
        if home is None:
            del os.environ["HOME"]
        else:
            os.environ["HOME"] = home
    return rocketmq
