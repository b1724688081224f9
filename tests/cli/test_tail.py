"""rmqstore tail -f: the answers are those of a stream, because both follow a log with one engine."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from rmq_store import MessageStore, is_system_topic
from rmq_store.cli.commands import tail
from rmq_store.errors import DataLossError, LogCutError, OtherStoreError, StoreError
from tests.support.golden import Golden, GoldenStore, unpack
from tests.support.growing import Growing
from tests.support.log_records import parts, records

NAME = "clean-5.5.0"


@pytest.fixture
def follow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[tuple[str, int, int]]]:
    """Runs `tail -f`, with a step of the test in each pause; returns the messages that it printed."""

    def run(path: str | Path, *steps: Callable[[], object]) -> list[tuple[str, int, int]]:
        left = list(steps)

        def sleep(seconds: float) -> None:
            if not left:
                raise KeyboardInterrupt
            left.pop(0)()

        # Not the function of the module: other threads of the test process sleep too.
        monkeypatch.setattr(tail, "time", SimpleNamespace(sleep=sleep))
        monkeypatch.setattr(tail, "_interrupt_event", threading.Event)
        arguments = [str(path), "-f", "-n", "1000000", "--json"]
        arguments += ["--columns", "topic,queueId,queueOffset"]
        # click turns ctrl-C into this
        with pytest.raises(click.Abort):
            tail.tail.main(arguments, standalone_mode=False)
        printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return [(row["topic"], row["queueId"], row["queueOffset"]) for row in printed]

    return run


@pytest.mark.parametrize("name", [NAME, "lmq-5.3.3", "geometry-5.5.0"])
def test_every_message_is_printed_once_however_the_log_grows(
    golden: Golden, tmp_path: Path, follow: Callable[..., list[tuple[str, int, int]]], name: str
) -> None:
    """A record that is half there is printed when it is whole."""
    store = Growing(golden(name), tmp_path)
    stops = [store.size * part // 40 + 777 for part in range(1, 40)] + [store.size]
    store.show_no_file()  # before the first message
    found = follow(store.path, *(lambda stop=stop: store.show(stop) for stop in stops))
    with MessageStore.open(golden(name).path) as whole:
        expected = [
            tuple(row.values())
            for batch in whole.read_batches(
                columns=("topic", "queueId", "queueOffset"), unwrap_batches=True
            )
            for row in batch.to_pylist()
        ]
    assert len(found) == len(set(found))
    assert sorted(found) == sorted(expected)


def bare_record(store: GoldenStore, body: bool) -> tuple[int, str]:
    """The end and the topic of a late record of a user without properties."""
    found = [
        (int(file.name) + at + len(raw), parts(raw)[2].decode())
        for file, at, raw in records(store.path)
        if not parts(raw)[3] and bool(parts(raw)[1]) is body and not raw[39] & 0x0C
    ]
    return [one for one in found if not is_system_topic(one[1])][-1]


@pytest.mark.parametrize("body", [True, False])
def test_a_last_message_without_properties_is_printed_before_the_next_one_comes(
    golden: Golden, tmp_path: Path, follow: Callable[..., list[tuple[str, int, int]]], body: bool
) -> None:
    stop, topic = bare_record(golden("direct-5.5.0"), body)
    store = Growing(golden("direct-5.5.0"), tmp_path)
    store.show(stop - 3)  # the topic lacks its last byte
    before = follow(store.path, lambda: None)
    found = follow(store.path, lambda: store.show(stop), lambda: None)
    assert found[: len(before)] == before
    assert [one[0] for one in found[len(before) :]] == [topic]


def cut(store: Growing) -> None:
    store.show(300_000)


def replace(store: Growing) -> None:
    shutil.rmtree(store.path)
    shutil.copytree(unpack("clean-5.3.3", store.path.parent).path, store.path)


@pytest.mark.parametrize(("change", "error"), [(cut, LogCutError), (replace, OtherStoreError)])
def test_a_log_that_is_not_the_one_printed_is_refused(
    golden: Golden,
    tmp_path: Path,
    follow: Callable[..., object],
    change: Callable[[Growing], None],
    error: type[StoreError],
) -> None:
    store = Growing(golden(NAME), tmp_path)
    store.show(500_000)
    with pytest.raises(error):
        follow(store.path, lambda: change(store))


def test_files_that_expired_before_they_were_printed_are_data_loss(
    golden: Golden, tmp_path: Path, follow: Callable[..., object]
) -> None:
    store = Growing(golden("geometry-5.5.0"), tmp_path)
    store.show(1000)

    def roll_and_expire() -> None:
        store.show(10**9)
        store.files[0].unlink()

    with pytest.raises(DataLossError, match="expired before they were read"):
        follow(store.path, roll_and_expire)
