"""Warnings of the package's log as lines on stderr."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Print each warning of the log on stderr, once however often it comes."""
    log, shown = logging.getLogger("rmqstore"), _Shown(logging.WARNING)
    log.addHandler(shown)
    try:
        yield
    finally:
        log.removeHandler(shown)


class _Shown(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line not in self._said:
            self._said.add(line)
            click.echo(f"rmqstore: warning: {line}", err=True)
