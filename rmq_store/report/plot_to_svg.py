"""Plots as SVG inside a page: text stays text, and the page's style decides its colour."""

from __future__ import annotations

import io
import re
import warnings
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from rmq_store.report.plots import STYLE
from rmq_store.report.section import Plot

_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
# Colours that stand for those of the page, which differ between its light and its dark theme.
_INK, _FAINT = "#010203", "#040506"
_OF_PAGE = {_INK: "currentColor", _FAINT: "var(--faint)"}
_NARROW, _WIDE = 4.2, 9.0  # inches
_PAGE_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "text.color": _INK,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "grid.color": _FAINT,
    "svg.fonttype": "none",
}
_ID = re.compile(r"url\(#([^)]*)\)")


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
        if child.tag == f"{_SVG}metadata" or child.tag.endswith("}metadata"):
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
