"""Sends messages by the official gRPC client of RocketMQ. Only executors import it."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from typing import Any

from rmq_store.errors import InvalidArgumentError
from rmq_store.format.byte_layout import CRC_PROPERTY, KEY_SEPARATOR, Property
from rmqstore_jobs.replay_targets.retrying_sender import (
    ACCESS_KEY,
    SECRET_KEY,
    BrokerAccess,
    Denied,
    RefusedMessage,
    Row,
    Unreachable,
)

MESSAGE_GROUP_LIMIT = 64  # characters; ProxyConfig#maxMessageGroupSize
REQUEST_SECONDS = 10
_CLIENT_LOG = "rocketmq-python-client"

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


_OPEN = BrokerAccess()


class GrpcClient:
    """A producer at a proxy. `fifo`: target topics whose messages have a message group.

    With `connect` False it only prepares messages, which shows what the client would refuse. The
    client signs each request with the credentials of `access`.
    """

    def __init__(
        self,
        endpoints: str,
        fifo: Collection[str],
        access: BrokerAccess = _OPEN,
        *,
        connect: bool = True,
    ) -> None:
        """Raises Denied if the broker cannot be trusted, or does not trust this client."""
        self._access = access
        if connect:
            access.trust()
        self._rocketmq = _imported()
        self._fifo = frozenset(fifo)
        self._endpoints = endpoints
        self._producer = self._started() if connect else None

    def _started(self) -> Any:
        rocketmq = self._rocketmq
        self._configuration = rocketmq.ClientConfiguration(
            self._endpoints,
            rocketmq.Credentials(*self._access.credentials),
            request_timeout=REQUEST_SECONDS,
        )
        producer = rocketmq.Producer(self._configuration, [], tls_enable=self._access.tls)
        producer.startup()
        return producer

    def prepare(self, row: Row) -> Any:
        """The client's message. Raises RefusedMessage with the client's own reason."""
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
            raise RefusedMessage(f"the client: {why}") from None
        return message

    def send(self, message: Any) -> None:
        """Send a message and wait for the answer. Raises RefusedMessage, Unreachable, Denied."""
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

        assert self._producer is not None
        named = self._configuration.rpc_endpoints
        request = QueryRouteRequest(endpoints=named.endpoints)
        request.topic.name = topic
        signed = Signature.metadata(self._configuration, self._producer.client_id)
        with self._channel(grpc, named.facade) as channel:
            try:
                ask = MessagingServiceStub(channel).QueryRoute
                status = ask(request, metadata=signed, timeout=REQUEST_SECONDS).status
            except grpc.RpcError as error:
                return self._unprotected(str(error.details()))
        if status.code not in (Code.UNAUTHORIZED, Code.FORBIDDEN):
            return None
        said = self._access.hidden(status.message)
        if status.code == Code.FORBIDDEN and self._access.has_credentials:
            return Denied(f"the user of {ACCESS_KEY} may not send to topic {topic!r}: {said}")
        what = (
            "does not accept the credentials"
            if self._access.has_credentials
            else "wants credentials"
        )
        return Denied(f"the proxy {what}: {said} (set {ACCESS_KEY} and {SECRET_KEY})")

    def _channel(self, grpc: Any, address: str) -> Any:
        if self._access.tls:
            return grpc.secure_channel(address, grpc.ssl_channel_credentials())
        return grpc.insecure_channel(address)

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


def _add(message: Any, name: str, value: str) -> None:
    from rocketmq.v5.exception import IllegalArgumentException

    try:
        message.add_property(name, value)
    except IllegalArgumentException as why:
        raise RefusedMessage(f"the client: property {name!r}: {why}") from None


def _imported() -> Any:
    """The client's module. Its import opens a log in the home folder, which is not wanted there."""
    home = os.environ.get("HOME")
    with tempfile.TemporaryDirectory(prefix="rmqstore-client-") as folder:
        os.environ["HOME"] = folder
        try:
            import rocketmq
        finally:
            if home is None:
                del os.environ["HOME"]
            else:
                os.environ["HOME"] = home
        log = logging.getLogger(_CLIENT_LOG)
        for handler in list(log.handlers):
            log.removeHandler(handler)
            handler.close()
        log.addHandler(logging.NullHandler())  # without one, warnings go to stderr
    return rocketmq
