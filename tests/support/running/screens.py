"""What the result of a job prints on a terminal, and in a pipe."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout

import pytest

from rmqstore_jobs.running.results import JobResult


class Screen(io.StringIO):
    """A terminal, or a pipe."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def shown(answer: JobResult, width: int, *, is_terminal: bool = True) -> list[str]:
    """The lines of a result without colours, what is wrong too."""
    screen = Screen(is_terminal)
    patched = pytest.MonkeyPatch.context()
    with patched as patch, redirect_stdout(screen), redirect_stderr(screen):
        patch.setenv("COLUMNS", str(width))
        patch.setenv("NO_COLOR", "1")
        answer.show()
    return screen.getvalue().split("\n")
