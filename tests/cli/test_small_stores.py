"""Every command and every table on a store that has next to nothing: an answer or an error, no traceback."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.cli.main import COMMANDS, other_commands
from rmq_store.errors import StoreError
from rmq_store.tables import TABLES, TABLES_OF_A_STORE
from tests.support.golden import unpack
from tests.support.running.campaigns import some
from tests.support.running.commands import call
from tests.support.spark.reads import rows_of

KINDS = (
    "no topic",
    "no log file",
    "no queue",
    "no config",
    "one message",
    "folder alone",
    "queues alone",
    "empty files",
)
FIRST = ("no topic", "one message")  # the others are a campaign
# What a command needs beside the store; {out} is a path that does not exist.
WORDS = {
    "diff": ["{store}"],
    "cat": ["--topic", "orders"],
    "sql": ["SELECT count(body) AS last FROM messages"],
    "table": ["files"],
    "trace": ["K1"],
    "find": ["--key", "K1"],
    "tail": ["-n", "1"],
    "report": ["-o", "{out}"],
    "rebuild": ["--to", "{out}"],
    "salvage": ["--to", "{out}"],
    "export": ["--to", "{out}"],
    "replay": ["--to", "{out}"],
}
NEITHER = [name for name in TABLES if name not in TABLES_OF_A_STORE]


def of_each_kind(names: list[str]) -> list[Any]:
    """Name and kind: all names with the first kinds, and as a campaign with the others."""
    others = [(name, kind) for name in names for kind in KINDS if kind not in FIRST]
    return [
        *((name, kind) for name in names for kind in FIRST),
        *(
            pytest.param(*pair, marks=pytest.mark.campaign)
            for pair in some(f"small stores {len(names)}", others, 8)
        ),
    ]


def small(kind: str, tmp_path: Path) -> Path:
    """A store of a kind. That with one message is ours; the others are a broker's, or folders."""
    store = tmp_path / "store"
    match kind:
        case "folder alone":
            (store / "commitlog").mkdir(parents=True)
        case "queues alone":
            for part in ("commitlog", "consumequeue/orders/0"):
                (store / part).mkdir(parents=True)
        case "no topic":
            MessageStore.create(store, {"mappedFileSizeCommitLog": 1 << 16}).close()
        case "empty files":
            for part in ("commitlog", "consumequeue/orders/0"):
                (store / part).mkdir(parents=True)
                (store / part / ("0" * 20)).touch()
        case "one message":
            config = {"mappedFileSizeCommitLog": 1 << 16}
            with MessageStore.create(store, config, release="5.5.0") as writer:
                writer.append({"topic": "orders", "queueId": 0, "body": b"last"})
        case _:
            shutil.move(unpack("clean-5.5.0", tmp_path).path, store)
            if kind == "no config":
                shutil.rmtree(store / "config")
            elif kind == "no queue":
                shutil.rmtree(store / "consumequeue")
            else:
                for file in (store / "commitlog").iterdir():
                    file.unlink()
    return store


@pytest.mark.parametrize(("name", "kind"), of_each_kind([*COMMANDS, *other_commands()]))
def test_every_command_answers(name: str, kind: str, tmp_path: Path) -> None:
    store = small(kind, tmp_path)
    out = str(tmp_path / "out")
    words = [word.format(out=out, store=store) for word in WORDS.get(name, [])]
    if name == "table":
        words.insert(0, words.pop())
        done = call("table", words[0], str(store))
    else:
        done = call(name, str(store), *words)
    assert done.returncode in (0, 1, 2), done.both
    assert "Traceback" not in done.both
    if done.returncode == 2:
        assert "RMQSTORE_" in done.both, done.both
    if kind == "one message" and name in ("topics", "queues", "usage", "cat", "tail", "sql"):
        expected = {"cat": "last", "tail": "last", "sql": "last\n1\n"}.get(name, "orders")
        assert expected in done.stdout
        assert "in no queue" not in done.stdout  # each byte of its log is of a message in a queue


@pytest.mark.parametrize(
    ("name", "kind"), of_each_kind([name for name in TABLES if name not in NEITHER])
)
def test_every_table_answers_in_the_shell_in_python_and_in_spark(
    name: str, kind: str, tmp_path: Path
) -> None:
    store = small(kind, tmp_path)
    for more in ([], ["--json"]):
        done = call("table", name, str(store), *more)
        assert done.returncode in (0, 1, 2), done.both
    try:
        with MessageStore.open(store) as opened:
            table = opened.table(name)
            refused = ""
    except StoreError as error:
        refused = error.code
    if refused:
        assert done.returncode == 2
        assert refused in done.stderr
        with pytest.raises(StoreError):
            rows_of({"path": str(store), "table": name})
        return
    assert done.returncode != 2
    assert table.schema.equals(TABLES[name].schema)
    rows_of({"path": str(store), "table": name, "includesystemtopics": "true"})


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_and_a_read_answer(kind: str, tmp_path: Path) -> None:
    store = str(small(kind, tmp_path))
    for options in ({"table": "plan"}, {}, {"source": "commitlog"}):
        try:
            rows = rows_of({"path": store, **options})
        except StoreError:
            continue
        if kind == "one message" and not options:
            assert [row["body"] for row in rows] == [b"last"]
