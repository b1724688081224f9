"""The report as an HTML page. Every text goes through `printable` and Jinja2's escaping."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.locate import commitlog_folders
from rmq_store.errors import (
    LOG,
    AccessError,
    InvalidArgumentError,
    StoreError,
    TargetExistsError,
    printable,
)
from rmq_store.report.plot_to_svg import svg_of
from rmq_store.report.section import Report, Section
from rmq_store.text.times import shown_time
from rmq_store.verify.findings import Severity

_MARK = '<meta name="generator" content="rmqstore report'
_HEAD = 1024  # bytes in which the mark stands


def html_of(report: Report) -> str:
    """The page: one file that asks for nothing else."""
    sections, drawn = drawn_plots(report.sections)
    return (
        templates("rmq_store.report")
        .get_template("page.html")
        .render(
            report=replace(report, sections=sections),
            made=shown_time(report.made_ms),
            severities=list(reversed(Severity)),
            svg_of=lambda plot, narrow: drawn[plot.anchor, narrow],
        )
    )


def templates(*packages: str) -> Environment:
    """The templates of packages, whose values are escaped and printable."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, ".") for package in packages]),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def drawn_plots(
    sections: Sequence[Section],
) -> tuple[list[Section], dict[tuple[str, bool], Markup]]:
    """The plots by anchor, narrow and wide, and the sections without those that cannot be drawn."""
    left: list[Section] = []
    drawn: dict[tuple[str, bool], Markup] = {}
    for section in sections:
        plots, unseen = [], list(section.unseen)
        for plot in section.plots:
            try:
                both = {
                    (plot.anchor, narrow): svg_of(plot, narrow=narrow) for narrow in (False, True)
                }
            except Exception as error:  # of any kind: times and names are foreign
                LOG.warning("%s cannot be drawn: %s", plot.about, error)
                unseen.append(f"{plot.about}: cannot be drawn, because {error}")
            else:
                drawn |= both
                plots.append(plot)
        left.append(replace(section, plots=plots, unseen=unseen))
    return left, drawn


def _shown(value: Any) -> Any:
    return value if isinstance(value, Markup) else printable(value)


def check_target(
    target: Path, store: str, *, overwrite: bool, broker_conf: str | None = None
) -> None:
    """Raise if no report may be written to `target`.

    InvalidArgumentError for a file that is not a report, unless `overwrite`, and for one inside of the
    store, which a report never changes. AccessError for what is no file in an existing folder.
    """
    folder = target.absolute().parent
    if not folder.is_dir():
        raise AccessError(target, reason="the folder does not exist", advice="Create it first")
    if not os.access(folder, os.W_OK):
        raise AccessError(target, reason="the folder is not writable", advice="Name another one")
    above = {*_with_parents(folder), *_with_parents(folder.resolve())}
    if above.intersection(_folders_of(store, broker_conf)):
        raise InvalidArgumentError(
            target, reason="a report is not written into the store", advice="Name a file elsewhere"
        )
    if target.is_dir():
        raise AccessError(target, reason="this is a folder", advice="Name a file in it")
    if target.exists() and not target.is_file():
        raise InvalidArgumentError(
            target, reason="this is not a regular file", advice="Name another file"
        )
    if target.exists() and not overwrite and not _is_report(target):
        raise TargetExistsError(
            target,
            reason="the file exists and is not a report",
            advice="Name another file, or give --overwrite",
        )


def _with_parents(folder: Path) -> tuple[Path, ...]:
    return folder, *folder.parents


def _folders_of(store: str, broker_conf: str | None) -> set[Path]:
    """The folders of a store, which may be on several disks, as they are named and as they are."""
    root = Path(store).absolute()
    folders = {root}
    with suppress(StoreError, OSError):  # the report says so
        folders |= set(commitlog_folders(root, StoreConfig.of(broker_conf)))
    return {path for folder in folders for path in (folder.absolute(), folder.resolve())}


def _is_report(target: Path) -> bool:
    if not target.is_file():
        return False
    with target.open("rb") as file:
        return _MARK.encode() in file.read(_HEAD)
