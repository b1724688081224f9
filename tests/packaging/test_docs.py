"""What the pages say is so: tables equal the code, examples run."""

from __future__ import annotations

import os
import pkgutil
import re
import subprocess
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import click
import pytest

import rmq_store
import rmqstore_jobs
import spark_source
from benchmarks import picture
from rmq_store.arrow.column_definitions import COLUMNS
from rmq_store.errors import StoreError
from rmq_store.scan.options import OPTIONS, STREAM_OPTIONS, WRITE_OPTIONS, Option
from rmq_store.tables import TABLES
from rmqstore_jobs.replaying.replay_question import ORIGIN, ORIGIN_PREFIX
from spark_source.spark_types import struct_field
from tests.support.checkout import CHECKOUT
from tests.support.pages import terminal
from tests.support.pages.consoles import assert_prints, folder_for, output_of, steps
from tests.support.pages.option_pages import JOBS, SYNOPSIS, TABLE, options, pages, synopsis, uses
from tests.support.pages.run_examples import examples
from tests.support.running.child import run_python

DOCS = CHECKOUT / "docs"
PAGES = [CHECKOUT / "README.md", *sorted(DOCS.rglob("*.md"))]
SHELL = re.compile(r"^```(?:sh|bash|shell)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(CHECKOUT))


def table(page: str, header: str) -> list[list[str]]:
    """The cells of the table of `page` whose first header cell is `header`."""
    lines = (CHECKOUT / "docs" / page).read_text("utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {header} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return rows


@pytest.mark.parametrize(
    ("page", "header", "options"),
    [
        ("spark.md", "option", OPTIONS),
        ("streams.md", "stream option", STREAM_OPTIONS),
        ("writing.md", "write option", WRITE_OPTIONS),
    ],
)
def test_the_options_are_those_of_the_code(
    page: str, header: str, options: Sequence[Option]
) -> None:
    expected = [
        [f"`{option.name}`", option.default, option.meaning.replace("|", "\\|")]
        for option in options
    ]
    assert table(page, header) == expected


def test_the_columns_are_those_of_the_code() -> None:
    expected = [
        [
            f"`{column.name}`" + (" (on request)" if column.on_request else ""),
            str(column.type),
            struct_field(column.field, column.meaning).dataType.simpleString(),
            "yes" if column.nullable else "no",
            column.meaning,
        ]
        for column in COLUMNS
    ]
    assert table("columns.md", "column") == expected


@pytest.mark.parametrize("name", list(TABLES))
def test_the_tables_are_those_of_the_code(name: str) -> None:
    first, *others = [[f"`{c.name}`", str(c.type), c.meaning] for c in TABLES[name].columns]
    assert first[:2] == ["`brokerName`", "string"]
    assert table("tables.md", f"column of `{name}`") == others


def kinds_of_errors(base: type[StoreError] = StoreError) -> Iterator[type[StoreError]]:
    yield base
    for kind in base.__subclasses__():
        yield from kinds_of_errors(kind)


def test_the_errors_are_those_of_the_code() -> None:
    """Each code, its class, and what that says of itself; and a next step for each."""
    for package in (rmq_store, spark_source, rmqstore_jobs):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    ours = ("rmq_store.", "spark_source.", "rmqstore_jobs.")
    expected = sorted(
        [f"`{kind.code}`", kind.__name__, " ".join((kind.__doc__ or "").split("\n\n")[0].split())]
        for kind in kinds_of_errors()
        if kind.__module__.startswith(ours)
    )
    found = table("errors.md", "code")
    assert [row[:3] for row in found] == expected
    assert all(len(row[3]) > len("Do this.") for row in found)


@pytest.mark.parametrize(("page", "typed", "command"), list(pages()), ids=lambda one: str(one))
def test_a_page_of_a_command_has_its_synopsis_and_options(
    page: Path, typed: str, command: click.Command
) -> None:
    text = page.read_text("utf-8")
    (shown,) = SYNOPSIS.findall(text)
    assert shown == synopsis(typed, command)
    (table,) = TABLE.findall(text)
    assert table == options(command)
    shown_options = [
        one for one in command.params if isinstance(one, click.Option) and not one.hidden
    ]
    assert all(option.help for option in shown_options)
    assert re.findall(r"^## (.*)$", text, re.MULTILINE)[:2] == ["Synopsis", "Options"]
    assert {"Exit codes", "Example"} <= set(re.findall(r"^## (.*)$", text, re.MULTILINE))
    assert any(typed in reported for reported, _ in steps(page))


def test_words_of_the_shell_and_of_spark_are_those_of_the_code() -> None:
    known = {option.name for option in (*OPTIONS, *WRITE_OPTIONS)}
    for word, of_source in table("commands.md", "in the shell"):
        assert word.strip("`") in uses()
        assert of_source.strip("`").partition("=")[0] in known


def test_every_command_has_a_page_and_the_index_leads_to_it() -> None:
    reported = {page for page, _, _ in pages()}
    assert reported == set((DOCS / "commands").glob("*.md"))
    runs = {
        path.stem
        for path in (CHECKOUT / "rmqstore_jobs").glob("*.py")
        if "main = Job(" in path.read_text()
    }
    assert runs == set(JOBS)
    index = (DOCS / "commands.md").read_text("utf-8")
    for page in (DOCS / "commands").glob("*.md"):
        assert f"(commands/{page.name})" in index
        assert f"\ncommands/{page.stem}\n" in index


UNNAMED = re.compile(r"^\|(?:[^|\n]*\|)+? +\|(?:.*\|)?\n\|---", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_tables_name_their_columns(page: Path) -> None:
    """All but the first, which compares what its rows name."""
    assert not UNNAMED.findall(page.read_text("utf-8"))


def test_the_origin_properties_are_those_of_the_code() -> None:
    text = (DOCS / "commands" / "replay.md").read_text("utf-8")
    (said,) = re.findall(r"an earlier one: ([^.]*)\.", text)
    assert re.findall(r"`([A-Z_]+)`", said) == [name.removeprefix(ORIGIN_PREFIX) for name in ORIGIN]


@pytest.mark.campaign
def test_the_picture_of_a_terminal_shows_what_commands_print(tmp_path: Path) -> None:
    """`python -m tests.support.pages.terminal` draws it again."""
    assert terminal.drawn_lines() == terminal.plain(folder_for(tmp_path))


def test_the_picture_of_the_speed_shows_the_figures_of_its_page() -> None:
    """`python -m benchmarks.picture` draws it again."""
    drawn = re.findall(r"<text [^>]*>([^<]+)</text>", picture.PICTURE.read_text("utf-8"))
    bars = picture.bars_of(picture.PAGE.read_text("utf-8"))
    assert len(bars) > 10
    for shown in ([bar.what for bar in bars], [bar.label for bar in bars]):
        start = drawn.index(shown[0])
        assert [text for text in drawn[start:] if text in shown][: len(bars)] == shown


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8")):
        assert (page.parent / link).exists(), f"{page.name}: {link}"


@pytest.mark.campaign
def test_examples_run(tmp_path: Path) -> None:
    """From top to bottom, in a folder with a real broker's store in `store`."""
    pages = [str(page) for page in PAGES if examples(page)]
    assert len(pages) > 5
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    words = ("-m", "tests.support.pages.run_examples", str(tmp_path), *pages)
    done = run_python(*words, env=environment)
    assert done.returncode == 0, done.stderr
    ran = [line for line in done.stdout.splitlines() if line.startswith("ran ")]
    assert ran == [f"ran {page}" for page in pages]
    assert "shape: (0, " not in done.stdout  # of Polars
    assert not re.search(r"│ +0 rows +│", done.stdout)  # of DuckDB


SLOW = ("diff.md", "report.md")
SHOWN = [
    pytest.param(page, marks=pytest.mark.campaign if page.name in SLOW else (), id=name_of(page))
    for page in PAGES
    if steps(page)
]


@pytest.mark.parametrize("page", SHOWN)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    folder = folder_for(tmp_path)
    for command, expected in steps(page):
        assert_prints(expected, output_of(command, folder))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_of_ours_in_a_page_is_run(page: Path) -> None:
    for block in SHELL.findall(page.read_text("utf-8")):
        reported = [line for line in block.splitlines() if line.startswith("rmqstore ")]
        assert not reported, f"{page.name}: make it a console block, with its output: {reported}"


@pytest.mark.parametrize(
    ("expected", "found"),
    [("a b\n", "a c\n"), ("a\n…\nc\n", "a\nb\n"), ("a\n", "a\nb\n"), ("", "a\n")],
)
def test_other_output_than_the_page_shows_is_noticed(expected: str, found: str) -> None:
    with pytest.raises(AssertionError):
        assert_prints(expected, found)


def built(docs: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """The pages made as `make docs` makes them."""
    recipe = next(
        line for line in (CHECKOUT / "Makefile").read_text().splitlines() if "sphinx-build" in line
    )
    words = recipe.split("sphinx-build ")[1].replace(" docs build/docs", "").split()
    return run_python("-m", "sphinx", *words, str(docs), str(target))


@pytest.mark.campaign
def test_make_docs_builds_every_page(tmp_path: Path) -> None:
    done = built(CHECKOUT / "docs", tmp_path / "pages")
    assert done.returncode == 0, done.stderr
    found = list((tmp_path / "pages").rglob("*.html"))
    made = {page.relative_to(tmp_path / "pages") for page in found}
    assert {page.relative_to(DOCS).with_suffix(".html") for page in PAGES[1:]} <= made
    assert "message_by_id" in (tmp_path / "pages" / "api.html").read_text("utf-8")
    pictures = {page: re.findall(r'<img [^>]*src="([^"]+)"', page.read_text()) for page in found}
    assert any(pictures.values())
    assert all((page.parent / name).is_file() for page in found for name in pictures[page])
    replay = (tmp_path / "pages" / "commands" / "replay.html").read_text("utf-8")
    assert "created unless --append is given" in replay  # no dash of smart quotes


def test_make_docs_refuses_a_broken_link(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for name in ("conf.py", "format.md"):
        (docs / name).write_bytes((CHECKOUT / "docs" / name).read_bytes())
    format_page = (docs / "format.md").read_text("utf-8")
    (docs / "format.md").write_text(
        "---\norphan: true\n---\n" + re.sub(r"\]\([^)]*\)", "]", format_page)
    )
    links = ["nowhere.md", "format.md#no-such-heading", "#nor-here"]
    (docs / "index.md").write_text("# Index\n\n" + "".join(f"[here]({one})\n\n" for one in links))
    done = built(docs, tmp_path / "pages")
    assert done.returncode != 0
    for link in links:
        assert link.lstrip("#").split("#")[-1] in done.stderr
