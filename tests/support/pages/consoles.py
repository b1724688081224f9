"""Console blocks of the docs: commands behind "$ ", and below each what it prints.

"…" stands for anything. Runs of blanks and tabs are alike, so that pages can show columns where a
pipe has tabs. `python -m tests.support.pages.consoles PAGE...` writes the output again below each command
that has no "…", in place.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.checkout import CHECKOUT
from tests.support.golden import unpack, unpack_field
from tests.support.running.commands import call

BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ANYTHING = "…"
COLUMNS = "100"
EXIT_CODE = '; echo "exit code $?"'
# Asked within this process, for there are many: what no shell has a part in but to take off quotes.
QUOTED = re.compile(r"""'[^']*'|"[^"$`\\]*\"""")
PLAIN = re.compile(r"rmqstore( [\w./:=,-]+)+")


def steps(page: Path) -> list[tuple[str, str]]:
    """The commands of a page, and what each prints."""
    return [step for block in BLOCK.findall(page.read_text("utf-8")) for step in _steps(block)]


def _steps(block: str) -> list[tuple[str, str]]:
    pieces = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(command, output) for command, _, output in (p.partition("\n") for p in pieces)]


def folder_for(scratch: Path) -> Path:
    """A folder that looks like the checkout after make, with real brokers' stores in it."""
    Path(unpack("clean-5.5.0", scratch).path).rename(scratch / "store")
    Path(unpack("clean-4.9.7", scratch).path).rename(scratch / "older")  # it has dead letters
    (unpack_field("pop-stages-5.5.0", scratch, "state") / "s3-second").rename(scratch / "popped")
    (scratch / ".venv").symlink_to(Path(sys.prefix))
    (scratch / "jobs").symlink_to(CHECKOUT / "jobs")
    return scratch


def output_of(command: str, folder: Path) -> str:
    """What a command of a page prints, errors too (of Spark's, only the output).

    Raises AssertionError where it does not end well; pages show other ends by `; echo "exit code $?"`.
    """
    asks_code = command.endswith(EXIT_CODE)
    plain = command.removesuffix(EXIT_CODE).removesuffix(" 2>&1")
    if PLAIN.fullmatch(QUOTED.sub("quoted", plain)):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setenv("COLUMNS", COLUMNS)
            asked = call(*shlex.split(plain)[1:])
        if asks_code:
            return f"{asked.both}exit code {asked.returncode}\n"
        assert asked.returncode == 0, asked.both
        return asked.both
    here = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{here}:{os.environ['PATH']}",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "COLUMNS": COLUMNS,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}"
    return done.stdout


def assert_prints(expected: str, found: str) -> None:
    """Raise AssertionError unless `found` is what the page shows."""
    plain = " ".join(found.split())
    pieces = [" ".join(piece.split()) for piece in expected.split(ANYTHING)]
    pattern = ".*".join(map(re.escape, pieces))
    assert re.fullmatch(pattern, plain, re.DOTALL), f"expected:\n{expected}\nfound:\n{found}"


def refresh(page: Path) -> None:
    """Write the output again below each command that has no "…"."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = folder_for(Path(scratch))

        def refreshed(block: re.Match[str]) -> str:
            reported = []
            for command, expected in _steps(block[1]):
                found = output_of(command, folder)
                reported.append(
                    f"$ {command}\n{expected if ANYTHING in expected else _columns(found)}"
                )
            return "```console\n" + "".join(reported) + "```"

        page.write_text(BLOCK.sub(refreshed, page.read_text("utf-8")), "utf-8")


def _columns(output: str) -> str:
    """Lines with tabs as columns; other lines as they are."""
    lines = [line.rstrip() for line in output.splitlines()]
    rows = [line.split("\t") for line in lines if "\t" in line]
    width = [
        max(len(row[i]) for row in rows if i < len(row))
        for i in range(max(map(len, rows), default=0))
    ]
    reported = [
        "  ".join(cell.ljust(width[i]) for i, cell in enumerate(line.split("\t"))).rstrip()
        if "\t" in line
        else line
        for line in lines
    ]
    return "".join(line + "\n" for line in reported)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        refresh(Path(name))
