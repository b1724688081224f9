"""The `rmqstore` command as tests call it: a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

from tests.support.golden import GoldenStore, Truth, in_a_queue

Golden = Callable[[str], GoldenStore]
COMMAND = [sys.executable, "-c", "from rmq_store.cli.main import main; main()"]


def run(*words: str, expect: int = 0) -> str:
    """Run a command; its output. What it says of errors comes with the failure."""
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == expect, f"{words}: {done.returncode}\n{done.stderr}"
    return done.stdout if expect in (0, 1) else done.stderr


def complaint(*words: str, expect: int) -> str:
    """What a command says beside its output."""
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == expect, f"{words}: {done.returncode}\n{done.stderr}"
    return done.stderr


def objects(*words: str, expect: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*words, "--json", expect=expect).splitlines()]


def sent_to(store: GoldenStore, topic: str) -> list[Truth]:
    return [one for one in store.truth if one["topic"] == topic and in_a_queue(one)]


def in_ms(text: str) -> int:
    return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)
