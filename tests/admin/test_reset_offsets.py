"""The offsets of groups, reset in the file that the broker reads."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore, QueueId
from tests.support.damage import write_at
from tests.support.golden import GoldenStore, log_files, unpack
from tests.support.running.commands import complaint, objects

PLAIN, LIGHT = "consumerOffset.json", "lmqConsumerOffset.json"
DEVICE = "%LMQ%device-1"


@pytest.fixture
def with_light_queues(tmp_path: Path) -> GoldenStore:
    return unpack("lmq-5.3.3", tmp_path)


def content(store: GoldenStore, name: str) -> dict[str, Any]:
    text = Path(store.path, "config", name).read_text("utf-8")
    read: dict[str, Any] = json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', text))
    return read


def reset(store: GoldenStore, conf: Path, *words: str) -> dict[int, int]:
    """The new offsets by queueId, which are written."""
    command = ("offsets", store.path, "--broker-conf", str(conf), *words, "--new-group", "--apply")
    return {row["queueId"]: row["after"] for row in objects(*command)}


def conf_of(folder: Path, *lines: str) -> Path:
    path = folder / "broker.conf"
    path.write_text("\n".join(lines), "utf-8")
    return path


def test_a_group_of_a_light_queue_goes_on_where_it_is_reset(with_light_queues: GoldenStore) -> None:
    """LmqConsumerOffsetManager#queryOffset reads a table of its own for such groups."""
    store = with_light_queues
    words = ("--group", DEVICE, "--topic", DEVICE, "--reset-to")
    end = reset(store, Path(store.conf), *words, "latest")[0]
    with store.open() as opened:
        assert opened.consumer_offsets()[DEVICE] == {DEVICE: {0: end}}
        assert end == opened.max_offset(DEVICE, 0) > 1
    written = content(store, LIGHT)
    assert written["lmqOffsetTable"] == {f"{DEVICE}@{DEVICE}": end}
    assert f"{DEVICE}@{DEVICE}" not in written["offsetTable"]
    reset(store, Path(store.conf), *words, "1")
    assert [row["consumerOffset"] for row in objects("lag", store.path, "--group", DEVICE)] == [1]


def test_of_two_files_that_of_the_setting_counts_else_the_newer_one(
    with_light_queues: GoldenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker reads one of them (BrokerController): the other is from before enableLmq was changed."""
    store = with_light_queues
    config = Path(store.path, "config")
    light = (config / LIGHT).read_text("utf-8")
    (config / PLAIN).write_text(re.sub(r"\b0:9,", "0:2,", light), "utf-8")
    for newer, offset in ((PLAIN, 2), (LIGHT, 9)):
        for name in (PLAIN, LIGHT):
            os.utime(config / name, (1, 2 if name == newer else 1))
        with caplog.at_level("WARNING"), store.open() as opened:
            assert opened.consumer_offsets()["g-slow"]["orders"][0] == offset
            assert opened.table("groups").num_rows == 4
        assert f"{newer} was written last, and is read here" in caplog.text
        caplog.clear()
        for lmq, expected in ((True, 9), (False, 2)):
            with MessageStore.open(store.path, config={"enableLmq": lmq}) as opened:
                assert opened.consumer_offsets()["g-slow"]["orders"][0] == expected
    without = conf_of(tmp_path, "enableLmq=false")
    reset(store, without, "--group", "g-slow", "--topic", "orders", "--reset-to", "latest")
    assert (config / LIGHT).read_text("utf-8") == light
    with MessageStore.open(store.path, broker_conf=without) as opened:
        assert opened.consumer_offsets()["g-slow"]["orders"][0] > 9


def test_a_file_that_the_broker_will_not_read_is_not_written(
    with_light_queues: GoldenStore, tmp_path: Path
) -> None:
    store, without = with_light_queues, conf_of(tmp_path, "enableLmq=false")
    before = content(store, LIGHT)
    reset(store, without, "--group", "new", "--topic", "orders", "--reset-to", "earliest")
    assert content(store, LIGHT) == before
    written = content(store, PLAIN)["offsetTable"]
    assert written.pop("orders@new") == dict.fromkeys("0123", 0)
    assert written == before["offsetTable"]  # the other groups stay where they are


def test_a_backup_alone_is_as_old_as_it_is(with_light_queues: GoldenStore) -> None:
    config = Path(with_light_queues.path, "config")
    light = (config / LIGHT).read_text("utf-8")
    (config / f"{PLAIN}.bak").write_text(re.sub(r"\b0:9,", "0:2,", light), "utf-8")
    os.utime(config / LIGHT, (1, 1))
    with with_light_queues.open() as opened:
        assert opened.consumer_offsets()["g-slow"]["orders"][0] == 2


def test_a_reset_to_a_time_skips_no_message_of_that_time_or_later(tmp_path: Path) -> None:
    """As of a broker whose clock is set back by two seconds in the middle of the log."""
    store, back = unpack("clean-5.5.0", tmp_path), 2000
    stored: dict[tuple[str, int], dict[int, int]] = {}
    files = {int(path.name): path for path in log_files(store)}
    middle = store.truth[len(store.truth) // 2]
    for record in store.truth:
        place, time = record["commitLogOffset"], record["storeTimestamp"]
        if place > middle["commitLogOffset"]:
            base = max(base for base in files if base <= place)
            write_at(files[base], place - base + 56, (time - back).to_bytes(8, "big"))
            time -= back
        stored.setdefault((record["topic"], record["queueId"]), {})[record["queueOffset"]] = time
    plain = set()
    for moment in range(middle["storeTimestamp"] - 3000, middle["storeTimestamp"] + 3000, 397):
        words = ("--group", "g", "--topic", "orders", "--reset-to-time", str(moment))
        for queue, after in reset(store, Path(store.conf), *words).items():
            times = stored["orders", queue]
            assert after == min((at for at, t in times.items() if t >= moment), default=len(times))
            with store.open() as opened:
                plain.add(opened.first_since(QueueId("orders", queue), moment) == after)
    assert plain == {True, False}


def test_groups_of_light_queues_move_to_the_table_that_the_broker_reads(
    with_light_queues: GoldenStore, tmp_path: Path
) -> None:
    """Where a broker reads the other file from now on."""
    store, config = with_light_queues, Path(with_light_queues.path, "config")
    text = (config / LIGHT).read_text("utf-8")
    light = text.replace('"lmqOffsetTable":{}', f'"lmqOffsetTable":{{"{DEVICE}@{DEVICE}":2}}')
    assert light != text
    (config / LIGHT).write_text(light, "utf-8")
    words = ("--group", "new", "--topic", "orders", "--reset-to", "earliest")
    for lmq, name in ((False, PLAIN), (True, LIGHT)):
        reset(store, conf_of(tmp_path, f"enableLmq={str(lmq).lower()}"), *words)
        written = content(store, name)
        assert (f"{DEVICE}@{DEVICE}" in written["offsetTable"]) is not lmq
        assert written.get("lmqOffsetTable", {}) == ({f"{DEVICE}@{DEVICE}": 2} if lmq else {})
        with MessageStore.open(store.path, config={"enableLmq": lmq}) as opened:
            assert opened.consumer_offsets()[DEVICE] == {DEVICE: {0: 2}}
        for path in config.glob(f"{LIGHT if name == PLAIN else PLAIN}*"):
            path.unlink()


def test_an_offset_that_no_broker_keeps_is_refused(with_light_queues: GoldenStore) -> None:
    """LmqConsumerOffsetManager#queryOffset: a group of light queues has one offset of a topic."""
    store = with_light_queues
    before = Path(store.path, "config", LIGHT).read_bytes()
    words = ("offsets", store.path, "--group", DEVICE, "--topic", "orders", "--new-group")
    said = complaint(*words, "--reset-to", "earliest", "--apply", expect=2)
    assert "Nothing was written. Reset queue 0 alone: --queue 0" in said
    assert Path(store.path, "config", LIGHT).read_bytes() == before
    objects(*words, "--queue", "0", "--reset-to", "earliest", "--apply")
    assert content(store, LIGHT)["lmqOffsetTable"] == {f"orders@{DEVICE}": 0}
