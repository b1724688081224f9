"""Names from the disk that a terminal would act on: no command prints them raw."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.errors import InvalidArgumentError, json_text, printable
from rmq_store.tables import TABLES_OF_A_STORE
from rmqstore_jobs.running.results import Provenance, TablesResult
from tests.support.damage import RAW, hostile_store
from tests.support.golden import GoldenStore, unpack, user_topic
from tests.support.running.commands import call, objects
from tests.support.running.screens import shown

RED, TITLE, BIDI, C1 = "evil\x1b[31m", "g\x1b]0;x\x07\n", "bi\u202edi", "c\x9bd"
COMMANDS = [
    ["info"],
    ["topics", "--system"],
    ["queues", "--system"],
    ["lag"],
    ["usage", "--by", "queue"],
    ["cat", "--topic", RED, "--skip-damaged"],
    ["cat", "--topic", "ev\x1b[31m"],
    ["find", "--key", RED],
    ["tail"],
    ["trace", TITLE],
    ["retention", "--keep-from", "2100-01-01"],
    ["offsets"],
    ["offsets", "--group", TITLE, "--reset-to", "latest"],
    ["sql", "SELECT topic, count(*) FROM messages GROUP BY ALL", "--skip-damaged"],
    ["sql", 'SELECT chr(27) || topic AS "\x1b[31m" FROM queues', "--json"],
    ["sql", "FROM messages WHERE topic = 'a\nb'", "--explain"],
    ["sql", "FROM \x1b[31m"],
    ["verify"],
    ["recover"],
    *(["table", name] for name in TABLES_OF_A_STORE),
]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store whose topics and groups have escape sequences, controls and bytes that are no UTF-8."""
    topics, offsets = (RED, "a\nb", C1, BIDI, "[bold]x"), (f"orders@{TITLE}", f"{RED}@{BIDI}")
    return hostile_store(tmp_path_factory.mktemp("e\x1b[1mvil"), topics, offsets)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: "-".join(words[:2]).encode())
def test_no_command_prints_a_control_character(hostile: str, words: Sequence[str]) -> None:
    command, *options = words
    arguments = [options[0], hostile] if command == "table" else [hostile, *options]
    for more in ([], ["--json"]):
        done = call(command, *arguments, *more)
        assert done.returncode in (0, 1, 2)
        assert RAW.search(done.both) is None, repr(done.both)
        if more:
            for line in done.stdout.splitlines():
                json.loads(line)


def test_json_keeps_the_names(hostile: str) -> None:
    """Escaped, not changed: a program gets the topic that it can ask for again."""
    names = {row["topic"] for row in objects("queues", hostile)}
    assert {RED, "a\nb", C1, BIDI, "[bold]x"} <= names


def test_errors_and_reports_of_jobs_are_printable() -> None:
    error = InvalidArgumentError(f"/data/{RED}", reason=f"no topic {BIDI}", advice=TITLE)
    assert RAW.search(str(error)) is None
    assert error.path == f"/data/{RED}"
    read = {BIDI: {0: (0, 1)}}
    source = Provenance(f"/data/{RED}", TITLE, (0, 1), read, {"topic": C1}, version="1")
    rows = [{"topic": RED, "about": "[red]x"}, {"topic": BIDI, "about": TITLE}]
    answer = TablesResult(
        "usage", False, {"by topic": rows}, source, 1.0, {C1: 1}, (RED,), False, TITLE
    )
    for width, is_terminal in ((30, True), (200, True), (30, False)):
        lines = shown(answer, width, is_terminal=is_terminal)
        assert not any(map(RAW.search, lines))
        assert any("[red]x" in line for line in lines)
    assert RAW.search(answer.to_json()) is None
    assert json.loads(answer.to_json())["tables"]["byTopic"][0]["topic"] == RED


def test_a_line_for_the_log_is_printable(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="rmqstore"):
        logging.getLogger("rmqstore").warning("no files: %s/%d", "a\x1b[2J\nb", 3)
    assert caplog.messages == ["no files: a\\u001b[2J\\nb/3"]


def test_what_printable_writes() -> None:
    raw, shown_as = (
        "a\tb\n\x1b\x7f\x9b\u202e\udcff é中",
        "a\\tb\\n\\u001b\\u007f\\u009b\\u202e\\xff é中",
    )
    assert printable(raw) == shown_as
    assert json_text({"a": "\x9b\udcff", "b": 1}) == '{"a":"\\u009b\\udcff","b":1}'
    assert json_text({"a": ["\n"]}, indent=1) == '{\n "a": [\n  "\\n"\n ]\n}'


def test_warnings_name_topics_without_what_a_terminal_acts_on(copy: GoldenStore) -> None:
    config, evil = Path(copy.path, "config"), "ev\x1b]0;x\x07il"
    Path(copy.path, "consumequeue/orders").rename(Path(copy.path, "consumequeue", evil))
    next(Path(copy.path, "consumequeue", evil, "0").glob("*2000")).unlink()
    offsets = {"offsetTable": {f"{evil}@group": {"0": 5}}}
    (config / "consumerOffset.json").write_text(json.dumps(offsets))
    done = call("lag", copy.path)
    assert "warning: queue ev\\u001b]0;x\\u0007il/0 lists no message" in done.stderr
    assert "\x1b" not in done.both


def test_a_store_in_a_folder_whose_name_is_not_utf_8_is_read(tmp_path: Path) -> None:
    golden = unpack("clean-5.2.0", tmp_path)
    path = tmp_path / os.fsdecode(b"raw\xff")
    Path(golden.path).rename(path)
    with MessageStore.open(path) as store:
        assert store.broker_name == "raw\\xff"
        found = store.read_batches(columns=["brokerName", "commitLogOffset"]).read_all()
        assert found.num_rows == sum(map(user_topic, golden.truth))
        assert set(found.column(0).to_pylist()) == {"raw\\xff"}
