"""Reports of stores, read as a browser reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from bs4 import BeautifulSoup, Tag

from rmq_store.report import page as page_module
from tests.support.running.commands import Done, call


@dataclass(frozen=True)
class Page:
    """A report and how its command ended."""

    done: Done
    html: str
    soup: BeautifulSoup

    def rows(self, anchor: str) -> list[dict[str, str]]:
        """The rows of a table: column -> what is shown, or the exact value where there is one."""
        table = self.soup.find("table", id=anchor)
        assert isinstance(table, Tag), f"no table {anchor}"
        body = table.find("tbody")
        assert isinstance(body, Tag)
        return [_cells(row) for row in body.find_all("tr")]

    def text(self, anchor: str) -> str:
        """The words of a section."""
        section = self.soup.find(id=anchor)
        assert section is not None
        return " ".join(section.get_text(" ").split())

    @property
    def commands(self) -> list[str]:
        """Every command that the page shows."""
        return [code.get_text() for code in self.soup.select("code.command")]

    @property
    def remarks(self) -> Mapping[str, str]:
        """The findings: text -> severity."""
        return {
            one.select(".text")[0].get_text(): one.select(".severity")[0].get_text()
            for one in self.soup.select("ul.remarks > li")
        }


def _cells(row: Tag) -> dict[str, str]:
    return {
        str(cell["data-column"]): str(cell.get("title") or cell.get_text().strip())
        for cell in row.find_all("td")
    }


def page_of(store: str, target: Path, *words: str) -> Page:
    """The report of a store, by the command."""
    done = call("report", store, "-o", str(target), *words)
    assert target.exists(), done.both
    html = target.read_text("utf-8")
    return Page(done, html, BeautifulSoup(html, "html.parser"))


MakePage = Callable[..., Page]


@pytest.fixture
def report(tmp_path: Path) -> MakePage:
    """`report(store, *words)`: its page."""
    return lambda store, *words: page_of(store, tmp_path / "report.html", *words)


@pytest.fixture
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of a second, and few tests are about plots."""
    monkeypatch.setattr(page_module, "svg_of", lambda plot, narrow: plot.about)
