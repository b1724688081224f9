"""The bar that `progress` shows. It is imported only where stderr is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from rmq_store.text.sizes import size


def bar(unit: str, measure: Callable[[], int] | None = None) -> Progress:
    """A bar for one task in `unit`, with the rate and the time left."""
    counts = (_Bytes(), TransferSpeedColumn()) if unit == "bytes" else (_Count(unit), _Rate())
    return _Measured(
        measure,
        "{task.description}",
        BarColumn(),
        *counts,
        _TimeLeft(),
        console=Console(stderr=True),
    )


class _Measured(Progress):
    """A bar that asks how much is done before it is drawn."""

    def __init__(
        self, measure: Callable[[], int] | None, *columns: str | ProgressColumn, console: Console
    ) -> None:
        self._measure = measure  # first, because the bar is drawn once now
        # What is printed on stdout is no business of a bar on stderr: stdout may be a pipe.
        super().__init__(
            *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        if self._measure is not None:
            for task in self.tasks:
                self.update(task.id, completed=self._measure())
        yield from super().get_renderables()


class _Bytes(DownloadColumn):
    def render(self, task: Task) -> Text:
        return Text(size(int(task.completed))) if task.total is None else super().render(task)


class _Count(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        of_all = "" if task.total is None else f" of {task.total:,.0f}"
        return Text(f"{task.completed:,.0f}{of_all} {self._unit}")


class _Rate(ProgressColumn):
    """Units a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s")


class _TimeLeft(ProgressColumn):
    """The time left; without a total the time that has passed."""

    def __init__(self) -> None:
        super().__init__()
        self._left, self._passed = TimeRemainingColumn(), TimeElapsedColumn()

    def render(self, task: Task) -> Text:
        return (self._passed if task.total is None else self._left).render(task)
