"""The picture of a terminal in the README: what commands print there, in 80 columns.

`python -m tests.support.pages.terminal` runs the commands in a terminal and draws the picture again.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from fcntl import ioctl
from pathlib import Path
from struct import pack
from termios import TIOCSWINSZ

from rich.console import Console
from rich.text import Text

from tests.support.checkout import CHECKOUT
from tests.support.pages.consoles import folder_for

PICTURE = CHECKOUT / "docs" / "pictures" / "terminal.svg"
COLUMNS, ROWS = 80, 40
COMMANDS = (
    "rmqstore topics store",
    "rmqstore lag store --top 4",
    "rmqstore find store --key ORDER_1674",
    "rmqstore sql store \"SELECT tags, count(*) AS n FROM messages WHERE topic = 'orders' "
    'GROUP BY tags ORDER BY n DESC LIMIT 3"',
)
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # a picture fetches nothing


def shown(command: str, folder: Path) -> str:
    """What a command prints in a terminal of 80 columns, with its colours, errors too."""
    ours, its = pty.openpty()
    ioctl(its, TIOCSWINSZ, pack("HHHH", ROWS, COLUMNS, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    env |= {"TERM": "xterm-256color", "PATH": f"{Path(sys.executable).parent}:{env['PATH']}"}
    with subprocess.Popen(
        command, shell=True, cwd=folder, env=env, stdin=its, stdout=its, stderr=its
    ) as process:
        os.close(its)
        printed = io.BytesIO()
        try:
            while piece := os.read(ours, 1 << 16):
                printed.write(piece)
        except OSError:  # Linux: the other end is closed
            pass
        process.wait()
    os.close(ours)
    return printed.getvalue().decode().replace("\r", "")


def lines(folder: Path) -> list[Text]:
    """The commands and what they print."""
    found = []
    for command in COMMANDS:
        found.append(Text(f"$ {command}", style="bold"))
        found.append(Text.from_ansi(shown(command, folder).rstrip("\n")))
        found.append(Text())
    return found[:-1]


def plain(folder: Path) -> list[str]:
    """The lines of the picture, without colours, as the picture breaks them."""
    console = Console(width=COLUMNS, file=io.StringIO())
    for text in lines(folder):
        console.print(text)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def drawn_lines() -> list[str]:
    """The text of the picture as it lies in docs."""
    from html import unescape

    rows: dict[int, list[tuple[float, str]]] = {}
    for x, row, text in re.findall(
        r'<text class="[^"]*" x="([0-9.]+)" y="[0-9.]+" textLength="[0-9.]+" '
        r'clip-path="url\(#terminal-line-([0-9]+)\)">([^<]*)</text>',
        PICTURE.read_text("utf-8"),
    ):
        rows.setdefault(int(row), []).append((float(x), unescape(text).replace("\xa0", " ")))
    last = max(rows)
    return [
        "".join(text for _, text in sorted(rows.get(row, []))).rstrip() for row in range(last + 1)
    ]


def draw(folder: Path) -> None:
    """Draw the picture again."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), color_system="standard")
    for text in lines(folder):
        console.print(text)
    svg = console.export_svg(title="rmqstore", unique_id="terminal")
    PICTURE.write_text(_FONT.sub("", svg), "utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        draw(folder_for(Path(scratch)))
