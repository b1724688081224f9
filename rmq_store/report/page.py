"""The report as an HTML page. Every text goes through `printable` and Jinja2's escaping."""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

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
from rmq_store.report.plots import STYLE
from rmq_store.report.section import Plot, Report, Section
from rmq_store.text.times import shown_time
from rmq_store.verify.findings import Severity

_MARK = '<meta name="generator" content="rmqstore report'
_HEAD = 1024  # bytes in which the mark stands
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
# Colours that stand for those of the page, which differ between its light and its dark theme.
_INK, _FAINT = "#010203", "#040506"
_OF_PAGE = {_INK: "currentColor", _FAINT: "var(--faint)"}
_NARROW, _WIDE = 4.2, 9.0  # inches
_PAGE_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "svg.fonttype": "none",
    "text.color": _INK,
    **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), _INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), _FAINT),
}
_ID = re.compile(r"url\(#([^)]*)\)")


def html_of(report: Report) -> str:
    """The page: one file that asks for nothing else."""
    sections, drawn = drawn_plots(report.sections)
    template = template_environment("rmq_store.report").get_template("page.html")
    return template.render(
        report=replace(report, sections=sections),
        made=shown_time(report.made_ms),
        severities=list(reversed(Severity)),
        svg_of=lambda plot, narrow: drawn[plot.anchor, narrow],
    )


def template_environment(*packages: str) -> Environment:
    """The templates of packages, whose values are escaped and printable."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, ".") for package in packages]),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable(value),
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


def refuse_report_target(
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
    real = folder.resolve()
    above = {folder, *folder.parents, real, *real.parents}
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
    if overwrite or not target.exists():
        return
    with target.open("rb") as file:
        is_report = _MARK.encode() in file.read(_HEAD)
    if not is_report:
        raise TargetExistsError(
            target,
            reason="the file exists and is not a report",
            advice="Name another file, or give --overwrite",
        )


def _folders_of(store: str, broker_conf: str | None) -> set[Path]:
    """The folders of a store, which may be on several disks, as they are named and as they are."""
    root = Path(store).absolute()
    folders = {root}
    with suppress(StoreError, OSError):  # the report says so
        folders |= set(commitlog_folders(root, StoreConfig.of(broker_conf)))
    return {path for folder in folders for path in (folder.absolute(), folder.resolve())}


def svg_of(plot: Plot, *, narrow: bool) -> Markup:
    """The plot as an `svg` element. The same data give the same bytes.

    Names of topics in it are text of the SVG, escaped by its writer.
    """
    name = f"{plot.anchor}-{'narrow' if narrow else 'wide'}"
    with mpl.rc_context({**STYLE, **_PAGE_STYLE, "svg.hashsalt": name}):
        size = (_NARROW if narrow else _WIDE, plot.height + (0.4 if narrow else 0))
        figure = Figure(figsize=size, layout="constrained")
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        raw = io.BytesIO()
        with warnings.catch_warnings():
            # Of glyphs that matplotlib's font lacks: the text stays text, and the browser has a font.
            warnings.simplefilter("ignore", UserWarning)
            plot.draw(axes, narrow)
            FigureCanvasSVG(figure).print_svg(raw, metadata={"Date": None, "Creator": None})
    return Markup(_for_page(raw.getvalue(), name, plot.about))


def _for_page(raw: bytes, name: str, about: str) -> str:
    """The SVG without what only a file of its own needs, its ids unlike those of other plots."""
    root = ElementTree.fromstring(raw)
    for child in list(root):
        if child.tag.endswith("}metadata"):
            root.remove(child)
    for element in root.iter():
        for style in list(element.findall(f"{_SVG}defs/{_SVG}style")):
            style.text = ""  # it is for every element of the page
        _rename(element, name)
    for unused in ("width", "height", "version"):
        root.attrib.pop(unused, None)
    root.attrib |= {"role": "img", "aria-label": about, "class": name.rpartition("-")[2]}
    ElementTree.register_namespace("", "http://www.w3.org/2000/svg")
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    return ElementTree.tostring(root, encoding="unicode")


def _rename(element: ElementTree.Element, name: str) -> None:
    for key, value in list(element.attrib.items()):
        if key == "id":
            element.set(key, f"{name}-{value}")
        elif key == _LINK and value.startswith("#"):
            element.set(key, f"#{name}-{value[1:]}")
        elif key in ("style", "clip-path", "fill", "stroke"):
            for mark, colour in _OF_PAGE.items():
                value = value.replace(mark, colour)
            element.set(key, _ID.sub(rf"url(#{name}-\1)", value))
