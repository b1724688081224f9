"""Progress on stderr: only in a terminal, only of long work, and never among what is printed."""

from __future__ import annotations

import io
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rmq_store.cli.commands import find, groups, repair, tables, verify
from rmq_store.cli.commands import system_topics as system
from rmq_store.text.progress import Progress
from rmqstore_jobs import dlq, export, replay
from rmqstore_jobs.running.job_command import Job
from tests.support.golden import Golden

Totals = list[tuple[str, float, float | None]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> Totals:
    """stderr is a terminal, and progress comes at once: (what, done, total) of each at its end."""
    ended: Totals = []
    end = Progress.__exit__

    def noted(progress: Progress, *exc: object) -> None:
        done = progress._done if progress._measure is None else progress._measure()
        progress._draw()
        end(progress, *exc)
        if progress.active:
            ended.append((progress._what, done, progress._total or None))

    monkeypatch.setattr(Progress, "__exit__", noted)
    monkeypatch.setattr("rmq_store.text.progress.SHOWN_AFTER", 0)
    return ended


def asked(command: Any, *words: str) -> str:
    """The output of a command or job whose stderr is a terminal."""
    with CliRunner().isolation() as (out, *_):
        sys.stderr.isatty = lambda: True  # type: ignore[method-assign]
        if isinstance(command, Job):
            command(list(words) if command is dlq.main else [*words, "--engine", "local"])
        else:
            with suppress(SystemExit):
                command.main(list(words), standalone_mode=False)
        sys.stdout.flush()
        return out.getvalue().decode()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (verify.verify, ()),
        (tables.usage, ()),
        (groups.lag, ()),
        (find.trace, ("ORDER_1",)),
        (find.find, ("--text", "order")),
        (find.find, ("--key", "ORDER_1")),
        (find.cat, ("--topic", "orders")),
        (dlq.main, ()),
    ],
    ids=lambda one: getattr(one, "__module__", type(one).__name__).removeprefix("click."),
)
def test_work_with_a_known_total_ends_at_it(
    golden: Golden, bars: Totals, command: Any, words: tuple[str, ...]
) -> None:
    """A total that is wrong makes the time left wrong."""
    asked(command, golden("clean-4.9.7").path, *words)
    assert bars
    what, done, total = bars[-1]
    assert total is not None, what
    assert done == pytest.approx(total, rel=0.02), what


def test_jobs_that_write_count_what_they_wrote(
    golden: Golden, bars: Totals, tmp_path: Path
) -> None:
    store = golden("clean-5.5.0").path
    asked(export.main, store, "--to", str(tmp_path / "e"), "--topic", "orders", "--checksums")
    targets = ("--to", str(tmp_path / "s"), "--to-parquet", str(tmp_path / "p"))
    asked(replay.main, store, *targets, "--topic", "orders")
    asked(replay.main, store, "--to", str(tmp_path / "x"), "--topic", "orders", "--dry-run")
    assert [what for what, _, _ in bars] == ["export", "checksums", "replay", "replay", "replay"]
    assert all(done == total for _, done, total in bars)


@pytest.mark.parametrize(
    "command",
    [system.scheduled, system.transactions, system.retries, system.traces, repair.recover],
)
def test_work_without_a_total_counts_what_it_read(
    golden: Golden, bars: Totals, command: Any
) -> None:
    asked(command, golden("crash-5.5.0").path)
    ((_, _, total),) = bars
    assert total is None


def test_rows_in_a_pipe_are_not_among_the_bar(golden: Golden, bars: Totals) -> None:
    """What is printed for a file has no line of progress in it."""
    store = golden("clean-5.5.0").path
    printed = asked(find.cat, store, "--topic", "orders", "--columns", "queueOffset")
    assert len(printed.splitlines()) == 971
    assert all(line.isdigit() for line in printed.splitlines())


def test_it_is_shown_after_a_second_and_leaves_room(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    screen = Terminal()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
    with Progress("verify", 10, unit="messages") as progress:
        progress(5)
        now[0] += 0.5
        progress._draw()
        assert not screen.getvalue()
        progress.pause()  # a row was printed: a second from now
        now[0] += 0.5
        progress._draw()
        assert not screen.getvalue()
        now[0] += 0.5
        progress._draw()
        assert (
            screen.getvalue()
            == f"\rverify  [{'#' * 15}{'-' * 15}]  5 of 10 messages  3/s  2.0 s\x1b[K"
        )
    assert screen.getvalue().endswith("\r\x1b[K")


def test_the_line_of_bytes_without_a_total(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Progress("recover", measure=lambda: 5 << 20) as progress:
        now[0] += 10
        assert progress._line() == "recover  5.0 MiB  512.0 KiB/s  10.0 s"


def test_nothing_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("verify", 10) as progress:
        progress(5)
        progress.expect(3)
        progress.pause()
    assert not progress.active
    assert capsys.readouterr() == ("", "")
