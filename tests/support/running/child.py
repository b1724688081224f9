"""Work done in a process of its own, if need be by a user to whom files can be closed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.checkout import CHECKOUT

NOBODY = 65534


def run_python(*words: str, cwd: Path = CHECKOUT, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a Python of its own with these words, however it ends."""
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, **how)


def python(code: str, *words: str, **how: Any) -> str:
    """Run code in a Python of its own; its output. What it says of errors comes with the failure."""
    done = run_python("-c", code, *words, **how)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
    return done.stdout


def killed(code: str, *words: str, **how: Any) -> None:
    """Run code that kills its own process."""
    done = run_python("-c", code, *words, **how)
    assert done.returncode == -signal.SIGKILL, done.stderr


def in_a_child(work: Callable[[], None]) -> int:
    """Run `work` in a process of its own; 0 if it went through, else how it ended."""
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return status


def become_nobody() -> None:
    """Of a child that root runs, to whom nothing is closed: have the rights of no one in particular."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
