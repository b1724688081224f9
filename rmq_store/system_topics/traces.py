"""Message traces: what producers and consumers report of each message to RMQ_SYS_TRACE_TOPIC.

A trace message has many reports, each closed by 0x02, with fields separated by 0x01 (the client's
TraceDataEncoder). Later releases append fields, so a report may have fewer or more than this module names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rmq_store.format.topics import TRACE_TOPIC
from rmq_store.reading.query import OnDamage
from rmq_store.reading.store_reader import StoreReader
from rmq_store.system_topics.system_topic_rows import Row, values_in, whole_queues_of

_END, _SEPARATOR = "\x02", "\x01"
_COLUMNS = ("queueId", "queueOffset", "storeTimestamp", "body")

_MESSAGE_TYPES = ("Normal_Msg", "Trans_Msg_Half", "Trans_msg_Commit", "Delay_Msg", "Order_Msg")
# docs/tables.md has what the fields mean.
_PUB = (
    "timestamp", "regionId", "groupName", "topic", "msgId", "tags", "keys", "storeHost",
    "bodyLength", "costMs", "messageType",
)  # fmt: skip
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "Pub": (*_PUB, "offsetMsgId", "success", "clientHost"),
    "SubBefore": ("timestamp", "regionId", "groupName", "requestId", "msgId", "retryTimes", "keys"),
    "SubAfter": (
        "requestId", "msgId", "costMs", "success", "keys", "contextCode", "timestamp", "groupName",
    ),
    "EndTransaction": (
        "timestamp", "regionId", "groupName", "topic", "msgId", "tags", "keys", "storeHost",
        "messageType", "transactionId", "transactionState", "fromTransactionCheck",
    ),
    "Recall": ("timestamp", "regionId", "groupName", "topic", "msgId", "success"),
}  # fmt: skip
_SHORT_PUB = (*_PUB, "success")  # releases before 4.5
_NUMBERS = frozenset(("timestamp", "bodyLength", "costMs", "retryTimes", "contextCode"))
_FLAGS = frozenset(("success", "fromTransactionCheck"))
_Begun = dict[tuple[object, object], object]  # request and message -> group, until it is consumed
_CONSUMED = ("SUCCESS", "TIME_OUT", "EXCEPTION", "RETURNNULL", "FAILED")  # ConsumeReturnType


def traces(store: StoreReader, on_damage: OnDamage | None = None) -> Iterator[Row]:
    """Every report, in the order in which the broker stored them. Columns as in the table `traces`.

    A SubAfter without a group gets that of its SubBefore, which clients send first. What is no report has
    only its text, in `unreadable`. Raises the errors of `read_slices` for damage.
    """
    parts = list(whole_queues_of(store, TRACE_TOPIC))
    if not parts:
        return
    begun: _Begun = {}
    for batch in store.read_slices(parts, columns=_COLUMNS, on_damage=on_damage):
        for queue, offset, stored, body in values_in(batch, _COLUMNS):
            place = {"queueId": queue, "queueOffset": offset, "storeTimestamp": stored}
            for report in reports_in(body.decode("utf-8", "replace")):
                yield _with_group(report, begun) | place


def _with_group(report: Row, begun: _Begun) -> Row:
    """The report; a SubAfter has the group of its SubBefore, of which clients up to 4.8 send no other."""
    consumed, group = (report.get("requestId"), report.get("msgId")), report.get("groupName")
    if report.get("traceType") == "SubBefore":
        begun[consumed] = group
    elif report.get("traceType") == "SubAfter":
        return {**report, "groupName": begun.pop(consumed, None) if group is None else group}
    return report


def reports_in_bodies(bodies: Iterable[bytes]) -> Iterator[Row]:
    """The reports of some trace messages. A SubAfter without a group gets that of its SubBefore."""
    begun: _Begun = {}
    for body in bodies:
        for report in reports_in(body.decode("utf-8", "replace")):
            yield _with_group(report, begun)


def reports_in(text: str) -> Iterator[Row]:
    """The reports in the body of a trace message."""
    for report in text.split(_END):
        if report:
            yield _report(report)


def _report(text: str) -> Row:
    kind, *values = text.split(_SEPARATOR)
    names = _FIELDS.get(kind)
    if names is None:
        return {"unreadable": text}
    if kind == "Pub" and len(values) == len(_SHORT_PUB):
        names = _SHORT_PUB
    row: dict[str, Any] = {"traceType": kind}
    for name, value in zip(names, values, strict=False):
        row[name] = _value(name, value)
    row["outcome"] = _outcome(row)
    return row


def _value(name: str, value: str) -> object:
    if not value or value == "null":
        return None
    if name in _NUMBERS:
        return _number(value)
    if name in _FLAGS:
        return value.lower() == "true"
    if name == "messageType":
        number = _number(value)
        known = number is not None and 0 <= number < len(_MESSAGE_TYPES)
        return _MESSAGE_TYPES[number] if known and number is not None else value
    return value


def _number(value: str) -> int | None:
    digits = value.removeprefix("-")
    return int(value) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None


def _outcome(row: Row) -> str | None:
    """How sending, consuming or the transaction ended."""
    if "transactionState" in row:
        return str(row["transactionState"])
    if row.get("success") is None:
        return None
    code = row.get("contextCode")
    # A client that sends no code leaves 0; one that took too long says so, whether it succeeded or not.
    if code is not None and (code or row["success"]) and 0 <= code < len(_CONSUMED):
        return _CONSUMED[code]
    return "SUCCESS" if row["success"] else "FAILED"
