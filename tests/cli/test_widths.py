"""Commands in terminals of several widths: nothing is wider, and what matters is shown."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from rmq_store.cli.main import COMMANDS
from rmq_store.cli.table_layout import CUT, Column, ColumnKind, Layout, cut_middle
from rmq_store.tables import TABLES_OF_A_STORE
from tests.support.golden import Golden, GoldenStore, unpack
from tests.support.running.commands import call, objects, run

STYLE = re.compile("\x1b\\[[0-9;]*m")
TABLES_OF_COMMANDS = [
    *(["table", name] for name in TABLES_OF_A_STORE),
    *(["topics"], ["queues"], ["lag"], ["usage"], ["usage", "--by", "topic,day"], ["transactions"]),
    *(["scheduled", "--system"], ["retries"], ["traces"]),
]

Rendered = Callable[..., list[str]]


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> Rendered:
    """The lines of a command in a terminal of a width, without their styles."""

    def run_in(width: int, *words: str, styles: bool = False) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm")
        module = import_module(f"rmq_store.cli.commands.{COMMANDS[words[0]][0]}")
        with CliRunner().isolation(color=True) as (out, *_):
            monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
            with suppress(SystemExit):  # of what is found
                getattr(module, words[0]).main(list(words[1:]), standalone_mode=False)
            sys.stdout.flush()
        text = out.getvalue().decode()
        return (text if styles else STYLE.sub("", text)).splitlines()

    return run_in


@pytest.fixture
def proxy_store(golden: Golden) -> GoldenStore:
    return golden("proxy-5.5.0")


@pytest.mark.parametrize("width", [60, 140])
@pytest.mark.parametrize("words", TABLES_OF_COMMANDS, ids=" ".join)
def test_tables_fit_the_terminal(
    proxy_store: GoldenStore, rendered: Rendered, words: list[str], width: int
) -> None:
    lines = rendered(width, *words, proxy_store.path)
    names, *piped = [line.split("\t") for line in run(*words, proxy_store.path).splitlines()]
    for line in lines:
        # A value that has a line of its own is never cut.
        assert cell_len(line) <= width or line.split(maxsplit=1)[0] in names
    given = [cell for row in piped for cell in row if cell]
    assert len(lines) >= min(len(given), len(piped))


@pytest.mark.parametrize("width", [60, 80, 140])
@pytest.mark.parametrize(
    "words",
    [["find", "--limit", "20"], ["cat", "--topic", "norm", "--limit", "20"], ["tail", "-n", "5"]],
    ids=lambda words: words[0],
)
def test_messages_fit_the_terminal(
    proxy_store: GoldenStore, rendered: Rendered, words: list[str], width: int
) -> None:
    lines = rendered(width, *words, proxy_store.path)
    assert all(cell_len(line) <= width for line in lines)
    piped = [line.split("\t") for line in run(*words, proxy_store.path).splitlines()]
    if width == 60:  # a line for each value of some
        values = {word for line in lines for word in line.split()}
        assert all(queue in values and offset in values for _, queue, offset, *_ in piped)
        return
    shown = [line for line in lines if re.search(r"T\d\d:\d\d:\d\d", line)]
    for line, (topic, queue, offset, time, _, _, body) in zip(shown, piped, strict=True):
        topic_shown, *rest = line.split()
        assert topic_shown.split("…")[0] in topic
        assert rest[:2] == [queue, offset]
        assert rest[2].rstrip("Z") in time
        assert line.split("  ")[-1].strip(" …") in body


def test_what_matters_of_transactions_is_shown_at_80(
    proxy_store: GoldenStore, rendered: Rendered
) -> None:
    rows = objects("transactions", proxy_store.path)
    lines = [line for line in rendered(80, "transactions", proxy_store.path) if "Z" in line]
    assert len(lines) == len(rows) == 3
    for line, row in zip(lines, rows, strict=True):
        state, since, topic, queue, checks, *_, transaction = line.split()
        assert (state, topic, int(queue), int(checks)) == (
            *(row["state"], row["topic"], row["queueId"], row["checks"]),
        )
        assert since == re.sub(r"\.\d+Z", "Z", row["sinceTimestamp"])
        start, end = transaction.split("…")
        assert row["transactionId"].startswith(start)
        assert row["transactionId"].endswith(end)


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize(
    "words", [["table", "files"], ["retention", "--keep-from", "2027-01-01T00:00:00Z"]]
)
def test_paths_keep_topic_queue_and_file(
    golden: Golden, rendered: Rendered, words: list[str], width: int
) -> None:
    store = golden("clean-5.5.0").path
    name, *more = words
    paths = [
        path
        for row in objects(name, *more, store)
        if "consumequeue" in (path := row.get("path", "")) and "dbstore" not in path
    ]
    assert paths
    lines = " ".join(rendered(width, name, *more, store)) + " "
    ends = ["/".join(path.split("/")[-3:]) for path in paths]
    assert [end for end in ends if f"/{end} " not in lines and f"{CUT}{end} " not in lines] == []


def test_a_narrow_terminal_gets_a_line_for_each_value(
    proxy_store: GoldenStore, rendered: Rendered
) -> None:
    rows = objects("transactions", proxy_store.path)
    blocks = "\n".join(rendered(50, "transactions", proxy_store.path)).split("\n\n")
    for block, row in zip(blocks, rows, strict=False):
        pairs = dict(line.split(maxsplit=1) for line in block.splitlines())
        assert pairs["transactionId"] == row["transactionId"]
        assert pairs["sinceTimestamp"] == row["sinceTimestamp"]
        assert pairs["halfQueueOffset"] == str(row["halfQueueOffset"])


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_ids_that_were_asked_for_are_never_cut(
    golden: Golden, rendered: Rendered, width: int
) -> None:
    store = golden("clean-5.5.0").path
    (row,) = objects("find", store, "--key", "ORDER_7", "--limit", "1")
    for column in ("keys", "uniqKey"):
        lines = rendered(width, "find", store, "--key", row[column].split()[0])
        assert any(row["keys"] in line for line in lines)
    asked = f"SELECT topic, uniqKey, msgId FROM messages WHERE uniqKey = '{row['uniqKey']}'"
    lines = rendered(width, "sql", store, asked)
    assert all(any(row[name] in line for line in lines) for name in ("uniqKey", "msgId"))
    columns = ("--columns", "topic,uniqKey,msgId")
    lines = rendered(width, "find", store, "--key", row["uniqKey"], *columns)
    assert any(row["msgId"] in line for line in lines)


def test_a_sentence_of_a_listed_row_wraps_at_words() -> None:
    ids = Column.of("id", ["7F" * 16], is_whole=True)
    layout = Layout([ids, Column.of("why", ["one two three four five six"])], 30)
    assert layout.is_listed
    assert layout.lines(["7F", "one two three four five six"]) == [
        *("id   7F", "why  one two three four five", "     six", "")
    ]


def test_what_is_wrong_is_red(
    tmp_path: Path, rendered: Rendered, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = unpack("clean-5.5.0", tmp_path).path
    offsets = Path(store, "config/consumerOffset.json")
    text, changed = re.subn(r"\b0:\d+", "0:1000000", offsets.read_text(), count=1)
    assert changed
    offsets.write_text(text)
    statuses = [
        json.loads(line)["status"] for line in call("lag", store, "--json").stdout.splitlines()
    ]
    assert statuses.count("ABOVE_MAX") == 1
    every = rendered(100, "lag", store, styles=True)
    lines = [line for line in every if any(one in line for one in statuses)]
    assert [line.startswith("\x1b[31m") for line in lines] == [one != "OK" for one in statuses]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in "".join(rendered(100, "lag", store, styles=True))


def test_values_show_what_a_column_holds() -> None:
    kinds = {
        "number": [["1", "", "-20"], ["1.5 KiB", "744 B"], ["44.5%"], ["1,000"]],
        "time": [["2026-11-21T09:46:44.062Z", ""], ["12026-11-21T09:46:44Z"]],
        "text": [["1", "a"], ["", ""], [], ["2026-11-21"], ["7F0001"]],
    }
    for kind, columns in kinds.items():
        for cells in columns:
            assert Column.of("some", cells).kind is ColumnKind(kind)
    assert Column.of("keys", ["1", "2"], is_text=True).kind is ColumnKind.TEXT


@pytest.mark.parametrize("text", ["0123456789", "é" * 30, "\u6f22" * 20, "a\u6f22" * 9])
def test_a_cut_text_keeps_its_start_and_its_end(text: str) -> None:
    for width in range(1, 24):
        cut = cut_middle(text, width)
        assert cell_len(cut) <= width
        if cell_len(text) <= width:
            assert cut == text
        elif width >= 7:
            start, end = cut.split("…")
            assert text.startswith(start.rstrip())  # half of a wide character is a blank
            assert text.endswith(end)
            assert start.strip()
            assert end


def test_columns_that_need_not_be_kept_are_left_out_from_the_end() -> None:
    columns = [Column.of(name, ["x" * 20]) for name in ("first", "second", "third", "fourth")]
    columns.insert(1, Column.of("empty", [""]))
    assert Layout(columns, 110).left_out == []
    assert Layout(columns, 75, kept=["first", "third"]).left_out == ["empty"]
    assert Layout(columns, 64, kept=["first", "third"]).left_out == ["fourth"]
    assert Layout(columns, 45, kept=["first", "third"]).left_out == ["second", "fourth"]
    narrow = Layout(columns, 20, kept=["first", "third"])
    assert (narrow.is_listed, narrow.left_out, narrow.header()) == (True, [], [])
    assert narrow.lines(["a", "", "b", "c", ""]) == ["first   a", "second  b", "third   c", ""]


def test_a_table_without_a_column_that_is_kept_is_shown() -> None:
    layout = Layout([Column.of("tags", ["x" * 30])], 8, kept=["topic"])
    assert layout.lines(["x" * 30])


@pytest.mark.parametrize("kind", [ColumnKind.TEXT, ColumnKind.BODY])
def test_a_column_without_a_name_has_a_cell_for_later_values(kind: ColumnKind) -> None:
    columns = [Column("", kind, [""], (8, 40)), Column("n", ColumnKind.NUMBER, ["1"])]
    layout = Layout(columns, 4)
    assert layout.header() == ["   n"]
    assert layout.lines(["orders", "2"]) == [f"{CUT}  2"]
    assert Layout(columns, 3).is_listed


def test_a_sentence_comes_on_several_lines_and_is_not_cut(
    tmp_path: Path, rendered: Rendered
) -> None:
    stores = [Path(unpack("clean-5.5.0", tmp_path / name).path) for name in "ab"]
    shutil.rmtree(stores[1] / "consumequeue/orders/1")
    shutil.copytree(stores[1] / "consumequeue/payments/0", stores[1] / "consumequeue/orders/1")
    lines = rendered(80, "diff", *map(str, stores))
    assert all(cell_len(line) <= 80 for line in lines[:4])
    assert "the entries lead to different messages, by their size" in " ".join(
        word for line in lines for word in line.split()
    )


def test_what_follows_a_sentence_keeps_its_column() -> None:
    columns = [Column.of("why", ["one two three four five six seven"]), Column.of("size", ["12"])]
    layout = Layout(columns, 32)
    assert layout.lines(["one two three four five six seven", "12"]) == [
        "one two three four five       12",
        "six seven",
    ]
