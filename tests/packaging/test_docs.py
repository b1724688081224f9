"""What the pages say is so: tables equal the code, examples run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.replay_rows import ORIGIN
from rmq_store.schema import COLUMNS
from rmq_store.tables import TABLES
from spark_source.options import OPTIONS
from spark_source.schema import struct_field
from tests.conftest import unpack

CHECKOUT = Path(__file__).parents[2]
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


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


def test_the_options_are_those_of_the_code() -> None:
    expected = [
        [f"`{option.name}`", option.default, option.meaning.replace("|", "\\|")]
        for option in OPTIONS
    ]
    assert table("spark.md", "option") == expected


def test_the_columns_are_those_of_the_code() -> None:
    expected = [
        [
            f"`{column.name}`" + (" (on request)" if column.on_request else ""),
            str(column.type),
            struct_field(column).dataType.simpleString(),
            "yes" if column.nullable else "no",
            column.meaning,
        ]
        for column in COLUMNS
    ]
    assert table("columns.md", "column") == expected


@pytest.mark.parametrize("name", list(TABLES))
def test_the_tables_are_those_of_the_code(name: str) -> None:
    expected = [[f"`{c.name}`", str(c.type), c.meaning] for c in TABLES[name].columns]
    assert table("tables.md", f"column of `{name}`") == expected


def test_the_origin_properties_are_those_of_the_code() -> None:
    assert [row[0] for row in table("replay.md", "property")] == [f"`{name}`" for name in ORIGIN]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8")):
        assert (page.parent / link).exists(), f"{page.name}: {link}"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if EXAMPLE.search(page.read_text())], ids=lambda page: page.name
)
def test_examples_run(page: Path, tmp_path: Path) -> None:
    """From top to bottom, in a folder with a real broker's store in `store`."""
    Path(unpack("clean-5.5.0", tmp_path).path).rename(tmp_path / "store")
    script = "\n".join(EXAMPLE.findall(page.read_text("utf-8")))
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
