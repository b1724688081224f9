"""The `rmqstore` command as tests call it: its entry point, in this process."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple

import pytest
import uvicorn
from click.testing import CliRunner

from rmq_store.cli.main import main
from tests.support.golden import GoldenStore, Truth, in_a_queue

# For tests that are about a process: signals, pipes, what is imported.
COMMAND = [sys.executable, "-c", "from rmq_store.cli.main import main; main()"]


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str
    both: str  # in the order in which it was printed


def call(*words: str) -> Done:
    """Run a command to its end, whatever that is.

    A new Python for each of some hundred commands would load the package as many times; the entry
    point is the same one, with streams of its own and the exit code as it hands it to the system.
    """
    with _signals_kept(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["rmqstore", *words])
        # click takes the name of the program from these two.
        patch.setattr(sys.modules["__main__"], "__package__", None, raising=False)
        patch.setattr(uvicorn.Server, "run", lambda *_: None)  # browse answers until a signal
        with CliRunner().isolation() as streams:
            with pytest.raises(SystemExit) as ended:
                main()
            sys.stdout.flush()
            sys.stderr.flush()
        code = ended.value.code
    assert isinstance(code, int)
    return Done(code, *(stream.getvalue().decode() for stream in streams))


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Handlers as they were: a command sets its own and leaves them to the end of its process."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGPIPE)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def run(*words: str, expect: int = 0) -> str:
    """Run a command; its output. What it says of errors comes with the failure."""
    done = call(*words)
    assert done.returncode == expect, f"{words}: {done.returncode}\n{done.stderr}"
    return done.stdout if expect in (0, 1) else done.stderr


def complaint(*words: str, expect: int) -> str:
    """What a command says beside its output."""
    done = call(*words)
    assert done.returncode == expect, f"{words}: {done.returncode}\n{done.stderr}"
    return done.stderr


def objects(*words: str, expect: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*words, "--json", expect=expect).splitlines()]


def sent_to(store: GoldenStore, topic: str) -> list[Truth]:
    return [one for one in store.truth if one["topic"] == topic and in_a_queue(one)]


def in_ms(text: str) -> int:
    return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)
