"""Errors and warnings advise the options of the shell in the shell, and those of the library elsewhere."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.cli.command import _SHELL, in_shell_words
from rmq_store.errors import StoreError, spoken, spoken_as
from rmq_store.scan.options import OPTIONS, WRITE_OPTIONS
from rmqstore_jobs.running.source_options import advice_in_shell_words
from tests.support.checkout import CHECKOUT
from tests.support.golden import Golden, GoldenStore, log_files, unpack
from tests.support.running.commands import call

# What advises those who call the library from Python, or streams, which the shell does not start.
_NOT_IN_THE_SHELL = (
    *(
        "rmq_store/testing",
        "rmq_store/reading/store_reader.py",
        "rmq_store/dataset/lazy_dataset.py",
    ),
    *("rmq_store/reading/query.py", "rmq_store/tables/__init__.py", "rmq_store/cli"),
    *("rmq_store/writing/store_writer.py", "spark_source/streaming", "spark_source/writing"),
    *("rmq_store/scan", "spark_source/spark_types.py"),
    "rmq_store/tables/plan.py",
)
_OF_THE_LIBRARY = re.compile(
    r"on_damage|queues=False|compacted=|append_to|readStream|\bdriver\b|MessageStore|in Python|batch_rows|"
    r"(?<![-\w])(?:" + "|".join({one.name for one in (*OPTIONS, *WRITE_OPTIONS)}) + r")="
)


@cache
def texts(path: Path) -> list[str]:
    return list(_texts(path))


def _texts(path: Path) -> Iterator[str]:
    """The texts of a module that are sentences; what is put into one is `…`."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""  # a docstring
        if isinstance(node, ast.JoinedStr):
            parts = [one.value if isinstance(one, ast.Constant) else "…" for one in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def advising() -> list[str]:
    """The texts that commands and jobs may print."""
    modules = [*CHECKOUT.glob("rmq_store/**/*.py"), *CHECKOUT.glob("spark_source/**/*.py")]
    shown = [
        path
        for path in modules
        if not path.relative_to(CHECKOUT).as_posix().startswith(_NOT_IN_THE_SHELL)
    ]
    return [text for path in shown for text in texts(path) if len(text.split()) > 1]


def test_no_text_of_the_shell_has_an_option_of_the_library() -> None:
    every = advising()
    assert len(every) > 1000
    assert [t for t in every if _OF_THE_LIBRARY.search(advice_in_shell_words(t))] == []


def test_each_phrase_of_the_library_is_one_that_it_has() -> None:
    modules = [*CHECKOUT.glob("rmq_store/**/*.py"), *CHECKOUT.glob("spark_source/**/*.py")]
    every = [text for path in modules if path.name != "command.py" for text in texts(path)]
    unused = {one for one in _SHELL if not any(one in text for text in every)}
    assert unused == set()
    assert all(in_shell_words(text) == text for text in _SHELL.values())


@pytest.mark.parametrize("command", ["cat", "find", "tail", "verify", "export", "dlq", "recover"])
@pytest.mark.parametrize("gone", ["the end of the log", "the middle of queues", "the queues"])
def test_commands_advise_options_that_they_have(command: str, gone: str, tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    if gone == "the end of the log":
        log_files(store)[-1].unlink()
    elif gone == "the queues":
        shutil.rmtree(Path(store.path, "consumequeue", "orders"))
    else:
        for path in Path(store.path, "consumequeue").glob("orders/*/*2000"):
            path.unlink()
    topic = [] if command in ("verify", "recover") else ["--topic", "orders"]
    target = ["--to", str(tmp_path / "out")] if command == "export" else []
    said = call(command, store.path, *topic, *target).both.replace(store.path, "")
    assert not _OF_THE_LIBRARY.search(said), said
    assert "Spark" not in said.replace("without Spark", ""), said


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("cat", "--topic", "orders"), ". --skip-damaged leaves it out"),
        (("sql", "select body from messages"), ". --skip-damaged leaves it out"),
        (("tail", "--topic", "orders"), ". --skip-damaged leaves it out"),
        (("export", "--to", "out", "--topic", "orders"), ". --mode DROPMALFORMED leaves it out"),
    ],
)
def test_a_command_advises_its_own_option(
    words: tuple[str, ...], advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = unpack("clean-5.5.0", tmp_path)
    log_files(store)[-1].unlink()
    assert advice in call(words[0], store.path, *words[1:]).both


def test_a_job_advises_no_option_that_it_lacks(copy: GoldenStore, tmp_path: Path) -> None:
    for command, there in (("replay", False), ("export", True)):
        start = ["--offsets", "orders:1=500..600"] if command == "replay" else []
        start = start or ["--subscribe", "orders", "--starting-offsets", '{"orders":{"1":500}}']
        said = call(command, copy.path, "--to", str(tmp_path / command), *start).both
        assert "500 of queue 1 of topic 'orders' is not in the queue" in said
        assert ("--no-fail-on-data-loss" in said) is there


def test_the_library_keeps_its_words(golden: Golden) -> None:
    text = "Read with on_damage to skip it"
    with spoken_as(in_shell_words):
        assert (
            StoreError(None, reason="why", advice=text).advice
            == "rmqstore cat --skip-damaged leaves it out"
        )
        assert spoken("the latest; failOnDataLoss=false reads the rest") == "the latest"
    assert StoreError(None, reason="why", advice=text).advice == text
    call("info", golden("clean-5.5.0").path)
    with pytest.raises(StoreError, match="the option brokerConf"):
        MessageStore.open(golden("multipath-5.5.0").path)
