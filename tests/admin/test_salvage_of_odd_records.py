"""salvage of intact records that no broker would take from a client: it copies each of them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.admin.salvage import salvage
from tests.support.damage import write_at
from tests.support.golden import GoldenStore, unpack
from tests.support.log_records import contents, records, rename
from tests.support.running.commands import run


@pytest.mark.parametrize(
    "name",
    ["pay.ment", "a+b:c  d", "p\u00e4yment", '"a"\\b\t.x', "-.-.-.-.", "%RETRY%a", "%a@b#c$d"],
)
def test_whatever_name_stands_in_an_intact_record_is_copied(tmp_path: Path, name: str) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    count = rename(store, b"payments", name.encode())
    source = contents(store.path)
    run("salvage", store.path, "--to", str(tmp_path / "copy"), "--raw")
    assert contents(tmp_path / "copy") == source
    with MessageStore.open(tmp_path / "copy") as copy:
        queues = [queue for queue in copy.queues() if queue.topic == name]
        assert sum(copy.max_offset(*queue) for queue in queues) == count
        assert copy.query_message(name, "ORDER_1650") or name == "%RETRY%a"
    run("verify", str(tmp_path / "copy"))


def test_a_name_that_leads_out_of_a_folder_is_left_out_with_its_reason(tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    count = rename(store, b"payments", b"../../ab")
    report = salvage(store.path, tmp_path / "copy", raw=True)
    assert report.messages == len(contents(store.path)) - count
    assert report.refused == {
        "message 0 of the batch: topic '../../ab' cannot name the folder of its queues": count
    }


def test_the_limits_of_the_target_for_new_messages_leave_nothing_out(tmp_path: Path) -> None:
    store = unpack("direct-5.5.0", tmp_path)  # IPv6 hosts, long topics, odd properties
    limits = {"maxMessageSize": 10, "autoMessageVersionOnTopicLen": False}
    report = salvage(store.path, tmp_path / "copy", raw=True, config=limits)
    assert (report.refused, report.skipped) == ({}, [])
    assert contents(tmp_path / "copy") == contents(store.path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param((12, ">i"), -1, id="queueId below 0"),
        pytest.param((12, ">i"), 2**31 - 2, id="queueId beyond all queues"),
        pytest.param((16, ">i"), -(2**31), id="flag"),
        pytest.param((36, ">i"), 0x7FFFF840, id="bits of sysFlag that nobody knows"),
        pytest.param((40, ">q"), -1, id="bornTimestamp"),
        pytest.param((72, ">i"), 10**9, id="reconsumeTimes"),
        pytest.param((52, ">i"), -5, id="port"),
    ],
)
def test_fields_that_no_client_sets_are_copied(
    copy: GoldenStore, tmp_path: Path, field: tuple[int, str], value: int
) -> None:
    plain = [(file, at) for file, at, raw in records(copy.path) if raw[36:40] == bytes(4)]
    for file, at in plain[::7]:
        write_at(file, at + field[0], struct.pack(field[1], value))
    source = contents(copy.path)
    report = salvage(copy.path, tmp_path / "copy", raw=True)
    assert (report.refused, report.skipped) == ({}, [])
    assert contents(tmp_path / "copy") == source


def test_an_inner_batch_without_the_number_of_its_messages_is_copied(tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    changed = 0
    for file, at, raw in list(records(store.path)):
        if b"INNER_NUM\x01" in raw:
            write_at(file, at + raw.index(b"INNER_NUM\x01"), b"INNER_NUX\x01")
            changed += 1
    assert changed
    report = salvage(store.path, tmp_path / "copy", raw=True)
    assert (report.refused, report.skipped) == ({}, [])
    assert contents(tmp_path / "copy") == contents(store.path)
