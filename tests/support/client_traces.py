"""Trace messages as clients encode them (tests/live/Traces.java prints them), held against our rows."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from rmq_store.system_topics.traces import reports_in

# As Traces.java prints the fields of a report. Those that a report does not have keep what their class
# starts with, so only those of its kind are compared.
_FIELDS = (
    "traceType", "timestamp", "regionId", "groupName", "requestId", "costMs", "success", "contextCode",
    "topic", "msgId", "tags", "keys", "storeHost", "bodyLength", "messageType", "offsetMsgId",
    "retryTimes", "transactionId", "transactionState", "fromTransactionCheck",
)  # fmt: skip


def assert_as_the_client_decodes(lines: Iterable[str]) -> int:
    """Each report has the values that the client's decoder gives. Returns how many there were."""
    count = 0
    for line in lines:
        _, text, *decoded = line.split(" ")
        rows = list(reports_in(_text(text)))
        assert len(rows) == len(decoded)
        for row, fields in zip(rows, decoded, strict=True):
            known = dict(zip(_FIELDS, map(_text, fields.split(",")), strict=True))
            expected = {name: known[name] for name in row if name in known}
            assert {name: _shown(row[name]) for name in expected} == expected
            assert len(expected) > 5
            assert "unreadable" not in row
            count += 1
    return count


def _text(raw: str) -> str:
    return base64.b64decode(raw).decode("utf-8")


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
