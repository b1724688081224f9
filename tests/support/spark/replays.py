"""What a replay of a golden store is held against."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmq_store import MessageStore
from rmq_store.arrow.column_definitions import arrow_schema
from rmq_store.format.byte_layout import CRC_PROPERTY
from rmq_store.format.compression import SysFlag
from rmqstore_jobs.replaying.replay_question import ORIGIN, ORIGIN_PREFIX
from rmqstore_jobs.replaying.replay_spec import ReplaySpec
from tests.support.golden import GoldenStore, messages_in, user_topic

NAME = "clean-5.5.0"


def spec(store: GoldenStore, **more: Any) -> ReplaySpec:
    conf = None if more.get("to_store") is None else store.conf
    known: dict[str, Any] = {"source": store.path, "broker_conf": store.conf, "target_conf": conf}
    known["broker_name"] = "broker-a"  # not every broker.conf has it
    return ReplaySpec(**{**known, **more})


def read_back(path: Path | str, *, system: bool = False) -> list[dict[str, Any]]:
    """The messages of the user topics of a store in the order of its log."""
    columns = ["topic", "queueId", "queueOffset", "commitLogOffset", "tags", "keys", "uniqKey"]
    columns += ["flag", "sysFlag", "bornTimestamp", "bornHost", "storeTimestamp", "reconsumeTimes"]
    columns += ["rawBody", "body", "properties"]
    with MessageStore.open(path) as store:
        batches = store.read_batches(columns=columns, include_system_topics=system)
        table = pa.Table.from_batches(batches, schema=arrow_schema(columns))
    for name in ("bornTimestamp", "storeTimestamp"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table[name].cast(pa.int64()))
    rows: list[dict[str, Any]] = table.to_pylist()
    return [{**row, "properties": dict(row["properties"])} for row in rows]


def topics_of(store: GoldenStore) -> tuple[str, ...]:
    """Those whose records are messages: the truth says nothing of the keys inside of an inner batch."""
    batches = {record["topic"] for record in store.truth if messages_in(record) > 1}
    return tuple(sorted({r["topic"] for r in store.truth if user_topic(r)} - batches))


def without(properties: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name not in names}


def origin_of(row: dict[str, Any]) -> dict[str, str]:
    return {
        name.removeprefix(ORIGIN_PREFIX): value
        for name, value in row["properties"].items()
        if name.startswith(ORIGIN_PREFIX)
    }


def expected_rows(store: GoldenStore, wanted: Callable[[dict[str, Any]], bool]) -> list[Any]:
    """What the truth says must arrive, in the order of the log."""
    rows = []
    for record in store.truth:
        if not user_topic(record) or not wanted(record):
            continue
        origin = {
            "BROKER": "broker-a",
            "TOPIC": record["topic"],
            "QUEUE_ID": str(record["queueId"]),
            "QUEUE_OFFSET": str(record["queueOffset"]),
            "LOG_OFFSET": str(record["commitLogOffset"]),
            "STORE_TIMESTAMP": str(record["storeTimestamp"]),
        }
        same = ("topic", "queueId", "tags", "keys", "uniqKey", "flag", "sysFlag", "bornTimestamp")
        rows.append(
            {name: record[name] for name in same}
            | {name: record[name] for name in ("bornHost", "reconsumeTimes")}
            | {"rawBody": base64.b64decode(record["body"] or "")}
            | {"properties": without(record["properties"], CRC_PROPERTY), "origin": origin}
        )
        rows[-1]["sysFlag"] &= ~SysFlag.STORE_HOST_V6  # the target's own host is IPv4
    return rows


def arrived(path: Path | str) -> list[Any]:
    """The same of a store that was replayed into."""
    rows = []
    for row in read_back(path):
        kept = without(row["properties"], *ORIGIN, CRC_PROPERTY)
        names = ("topic", "queueId", "tags", "keys", "uniqKey", "flag", "sysFlag", "bornTimestamp")
        rows.append(
            {name: row[name] for name in (*names, "bornHost", "reconsumeTimes", "rawBody")}
            | {"properties": kept, "origin": origin_of(row)}
        )
    return rows


def everything(record: dict[str, Any]) -> bool:
    return True
