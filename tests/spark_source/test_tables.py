"""The tables about a store, against the truth and the answers of golden stores."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rmq_store.tables import TABLES, TABLES_OF_A_STORE
from spark_source.table_reader import table_schema
from tests.support.damage import write_at
from tests.support.golden import GoldenStore, in_a_queue, messages_in
from tests.support.spark.reads import rows_of


def table(store: GoldenStore | str, name: str, **options: str) -> list[dict[str, Any]]:
    path = store if isinstance(store, str) else store.path
    return rows_of({"path": path, "table": name, **options})


@pytest.mark.parametrize("name", list(TABLES_OF_A_STORE))
def test_spark_and_the_core_give_the_same_table(clean: GoldenStore, name: str) -> None:
    with clean.open() as opened:
        core = TABLES[name].of(opened)
    assert core.schema.equals(TABLES[name].schema)
    ours = table(clean, name, includesystemtopics="true")

    def plain(rows: list[dict[str, Any]]) -> Counter[str]:
        moving = ("configAgeMs",)
        return Counter(
            json.dumps({k: v for k, v in row.items() if k not in moving}, default=str)
            for row in rows
        )

    # Spark's timestamps have microseconds, and str shows them alike.
    assert plain(ours) == plain(core.to_pylist())


@pytest.mark.parametrize("name", list(TABLES))
def test_the_schema_for_spark_is_that_of_the_core(name: str) -> None:
    schema = table_schema(name)
    assert schema.fieldNames() == TABLES[name].schema.names
    assert all(field.metadata["comment"] for field in schema)


def test_undispatched_messages_are_the_dispatch_lag(copy: GoldenStore) -> None:
    assert {r["dispatchLag"] for r in table(copy, "queues")} == {0}
    last = [r for r in copy.truth if in_a_queue(r)][-1]
    assert messages_in(last) == 1
    folder = Path(copy.path) / "consumequeue" / last["topic"] / str(last["queueId"])
    file = sorted(folder.iterdir())[-1]
    at = last["queueOffset"] * 20 - int(file.name)
    write_at(file, at, bytes(file.stat().st_size - at))
    rows = {(r["topic"], r["queueId"]): r for r in table(copy, "queues")}
    row = rows[last["topic"], last["queueId"]]
    assert (row["dispatchLag"], row["dispatchLagBytes"]) == (1, last["storeSize"])


def test_groups_say_how_far_they_are_and_what_is_wrong(copy: GoldenStore) -> None:
    config = Path(copy.path) / "config"
    with copy.open() as opened:
        high = opened.max_offset("orders", 0)
    (config / "consumerOffset.json").write_text(
        f'{{"offsetTable":{{"orders@g":{{0:{high - 3},1:1000000000}},'
        '"gone@g":{0:5},"orders@h":{0:-1}}}'
    )
    rows = {(r["consumerGroup"], r["topic"], r["queueId"]): r for r in table(copy, "groups")}
    last = sorted(
        (r for r in copy.truth if (r["topic"], r["queueId"]) == ("orders", 0)),
        key=lambda r: r["queueOffset"],
    )[-3:]
    row = rows["g", "orders", 0]
    assert (row["lag"], row["lagBytes"]) == (3, sum(r["storeSize"] for r in last))
    assert row["lagMs"] == last[-1]["storeTimestamp"] - last[0]["storeTimestamp"]
    assert row["configAgeMs"] >= 0
    assert row["configFile"] == str(config / "consumerOffset.json")
    assert {key: r["status"] for key, r in rows.items()} == {
        ("g", "orders", 0): "OK",
        ("g", "orders", 1): "ABOVE_MAX",
        ("g", "gone", 0): "NO_SUCH_QUEUE",
        ("h", "orders", 0): "OK",  # a broker has -1 for no offset
    }
    offsets = table(copy, "offsets")
    assert Counter(r["kind"] for r in offsets)["consumer"] == 4


def test_secrets_in_the_configuration_are_hidden(copy: GoldenStore) -> None:
    path = Path(copy.path) / "config" / "plain_acl.json"
    path.write_text('{"accounts":{"a":{"secretKey":"swordfish","admin":true}}}')
    rows = {r["name"]: r["value"] for r in table(copy, "config") if r["file"] == str(path)}
    assert rows == {"accounts.a.secretKey": "(hidden)", "accounts.a.admin": "true"}


def test_a_damaged_config_file_is_a_row_and_no_failure(copy: GoldenStore) -> None:
    for path in (Path(copy.path) / "config").glob("topics.json*"):
        path.write_bytes(b"{")
    (row,) = [r for r in table(copy, "config") if r["problem"]]
    assert "RMQSTORE_CORRUPT_CONFIG" in row["problem"]
    assert table(copy, "topics")
