"""Names from a store in a report: shown, escaped, and never acted on by a browser, plot or shell."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.axes import Axes

from rmq_store.errors import printable
from rmq_store.report.page import svg_of
from rmq_store.report.plots import draw_bars, shown_name
from rmq_store.report.section import Plot, shell_word
from tests.report.conftest import Page, page_of
from tests.support.damage import RAW, hostile_store

TOPICS = ("<script>alert(1)<", "$x$", "a\nb", "_hidden", '"><img src=x>', "bi\u202edi")
GROUPS = ("</code><script>", "$\\frac{1$", "it's\n$(touch here)", "g\x1b]0;x\x07")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The report of a store whose topics and groups a page, a plot and a shell would act on."""
    offsets = [f"{topic}@{group}" for topic in (*TOPICS, "orders") for group in GROUPS]
    path = hostile_store(tmp_path_factory.mktemp("<b>$e$"), TOPICS, offsets)
    return page_of(path, tmp_path_factory.mktemp("page") / "report.html")


def test_names_are_shown_escaped(hostile: Page) -> None:
    assert RAW.search(hostile.html) is None
    for name in ("script", "img", "iframe", "object", "base", "b"):
        assert not hostile.soup.find(name), name
    shown = {row["topic"] for row in hostile.rows("by-topic")}
    assert {printable(topic) for topic in TOPICS} <= shown
    groups = {row["consumerGroup"] for row in hostile.rows("lag-by-group")}
    assert {printable(group) for group in GROUPS} <= groups


def test_a_page_asks_for_nothing(hostile: Page) -> None:
    assert "default-src 'none'" in hostile.html
    for element in hostile.soup.find_all(True):
        for name, value in element.attrs.items():
            assert not name.startswith("on"), name
            if name in ("src", "href", "xlink:href", "action", "data"):
                assert str(value).startswith(("#", "data:,")), value
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", hostile.html)
    assert "@import" not in hostile.html


def test_a_shell_takes_the_commands_as_they_are_meant(hostile: Page, tmp_path: Path) -> None:
    """Bash splits them into the words that they were made of, and runs nothing in them."""
    groups = [one for one in hostile.commands if one.startswith("rmqstore lag ") and "--" in one]
    lines = [command.replace("rmqstore", "printf '%s\\0'", 1) for command in groups]
    script = "; printf '\\n\\n'; ".join(lines)
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, cwd=tmp_path)
    found = set()
    for printed in done.stdout.split(b"\0\n\n"):
        words = printed.removesuffix(b"\0").split(b"\0")
        assert (words[0], words[2], words[4]) == (b"lag", b"--group", b"--topic")
        found.add(words[3].decode("utf-8", "surrogatepass"))
        assert words[1].endswith(b"<b>$e$0/clean-5.2.0/store")
    assert found <= set(GROUPS)
    assert len(found) > 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "word", [*TOPICS, *GROUPS, os.fsdecode(b"raw\xff'\\"), "\ud800", "", "-x", "é"]
)
def test_a_word_of_a_command_survives_a_shell(word: str) -> None:
    quoted = shell_word(word)
    assert RAW.search(quoted) is None
    command = ["bash", "-c", f"printf %s {quoted}"]
    done = subprocess.run(command, capture_output=True, check=True)
    errors = "surrogatepass" if word == "\ud800" else "surrogateescape"
    assert done.stdout == word.encode("utf-8", errors)


def test_names_are_drawn_as_they_are() -> None:
    """No formula, no name left out, no markup; and the same data give the same bytes."""
    names = ["_hidden", "$\\frac{1$", "a\x1b[2J", "<script>", 'id="x" url(#y)', "x" * 300]

    def draw(axes: Axes, narrow: bool) -> None:
        draw_bars(axes, [shown_name(name, 40) for name in names], range(6), ["$1$"] * 6)
        for name in names:
            axes.plot([0, 1], [0, 1], label=shown_name(name, 40))
        axes.legend()

    plot = Plot("plot-x", 'about "it" <b>', draw)
    svg = svg_of(plot, narrow=False)
    assert svg == svg_of(plot, narrow=False)
    root = ElementTree.fromstring(svg)
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    for name in names:
        assert texts.count(shown_name(name, 40)) == 2, name
    assert shown_name("x" * 300, 40) == "x" * 39 + "…"
    ids = [one.get("id") for one in root.iter() if one.get("id")]
    assert len(ids) == len(set(ids))
    assert all(str(one).startswith("plot-x-wide-") for one in ids)
    assert "#010203" not in svg
    assert "currentColor" in svg
