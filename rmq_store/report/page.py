"""The report as an HTML page. Every text goes through `printable` and Jinja2's escaping."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rmq_store.errors import AccessError, InvalidArgumentError
from rmq_store.escaping import printable
from rmq_store.files.durable import write_whole
from rmq_store.report.section import Report
from rmq_store.report.svg import svg_of
from rmq_store.text.times import shown_time
from rmq_store.verify.findings import Severity

_MARK = '<meta name="generator" content="rmqstore report'
_HEAD = 1024  # bytes in which the mark stands


def html_of(report: Report) -> str:
    """The page: one file that asks for nothing else."""
    environment = Environment(
        loader=PackageLoader("rmq_store.report", "."),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        report=report,
        made=shown_time(report.made_ms),
        severities=list(reversed(Severity)),
        svg_of=svg_of,
    )


def _shown(value: Any) -> Any:
    """A value for the page; what comes as markup is our own."""
    return value if isinstance(value, Markup) else printable(value)


def check_target(target: Path, store: str, *, overwrite: bool) -> None:
    """Raise if no report may be written to `target`.

    InvalidArgumentError for a file that is not a report, unless `overwrite`, and for one inside of the
    store, which a report never changes. AccessError for what is no file in an existing folder.
    """
    root, folder = Path(store).resolve(), target.absolute().parent
    if not folder.is_dir():
        raise AccessError(target, reason="the folder does not exist", advice="Create it first")
    if not os.access(folder, os.W_OK):
        raise AccessError(target, reason="the folder is not writable", advice="Name another one")
    if root in (folder.resolve(), *folder.resolve().parents):
        raise InvalidArgumentError(
            target, reason="a report is not written into the store", advice="Name a file elsewhere"
        )
    if target.is_dir():
        raise AccessError(target, reason="this is a folder", advice="Name a file in it")
    if target.exists() and not overwrite and not _is_report(target):
        raise InvalidArgumentError(
            target,
            reason="the file exists and is not a report",
            advice="Name another file, or give --overwrite",
        )


def _is_report(target: Path) -> bool:
    if not target.is_file():
        return False
    with target.open("rb") as file:
        return _MARK.encode() in file.read(_HEAD)


def write_page(target: Path, page: str) -> None:
    """Write the page as a whole: after a failure the file is the old one or the new one."""
    write_whole(target, page)
