"""The examples in each command's help are true: all of them run, on a store that a broker wrote."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from rmq_store.cli.command import EXIT_FAILED, EXIT_INTERRUPTED, Command
from rmq_store.cli.main import COMMANDS, other_commands, rmqstore
from tests.support.golden import unpack
from tests.support.running.commands import call

WITH_DEAD_LETTERS = ("dlq", "retries")
COPIES = ("broker-a/store", "master", "migrated", "slave")
WIDTH = 76  # that a terminal of 80 columns leaves


@pytest.fixture
def data(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is what /data is in the examples of a command."""
    golden = "clean-4.9.7" if name in WITH_DEAD_LETTERS else "clean-5.5.0"
    Path(unpack(golden, tmp_path).path).rename(tmp_path / "store")
    (tmp_path / "broker-a").mkdir()
    for copy in COPIES:
        (tmp_path / copy).symlink_to(tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ctrl_c(seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """A sleep that ends by ctrl-C, but in threads that tests before this one left behind."""
    if threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt
    sleep(seconds)


@pytest.mark.parametrize("name", [*COMMANDS, *other_commands()])
def test_the_examples_of_a_command_run(
    name: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = rmqstore.get_command(click.Context(rmqstore), name)
    assert isinstance(command, Command)
    shown = call(name, "--help").stdout.partition("\nExamples:\n")[2].splitlines()
    assert shown[: len(command.examples)] == [f"  {line}" for line in command.examples]
    assert max(map(len, command.examples)) <= WIDTH
    monkeypatch.setattr(time, "sleep", ctrl_c)  # tail -f waits for messages
    examples = [line for line in command.examples if not line.startswith("# ")]
    assert 1 <= len(examples) <= 3
    for example in examples:
        program, *words = shlex.split(example.replace("/data/", f"{data}/"))
        assert (program, words[0]) == ("rmqstore", name)
        done = call(*words)
        assert done.returncode != EXIT_FAILED, f"{example}\n{done.both}"
        assert (done.returncode == EXIT_INTERRUPTED) is ("-f" in words)
