"""cat, find and tail in a terminal: a table whose rows come as they are read, and no escapes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from rmq_store.cli.batch_printer import BatchPrinter
from rmq_store.cli.commands import find, tail
from rmq_store.cli.messages import MessageForm
from rmq_store.text.bodies import bodies_as
from tests.support.golden import GoldenStore
from tests.support.running.commands import call, run, sent_to

WIDTH = 110
BOLD = re.compile("\x1b\\[[0-9;]*m")
JSON = b'{"id": 1,\n  "price": 1.10, "id": 2, "note": "a  b\\""}'
ONE_LINE = '{"id":1,"price":1.10,"id":2,"note":"a  b\\""}'


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Runs a command in a terminal of WIDTH columns; returns its lines, the header first."""

    def run_in(command: Any, *words: str) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(WIDTH))
        monkeypatch.setenv("TERM", "xterm")
        with CliRunner().isolation() as (out, *_):
            monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
            command.main(list(words), standalone_mode=False)
            sys.stdout.flush()
        return BOLD.sub("", out.getvalue().decode()).splitlines()

    return run_in


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """stdout is one without colours."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")


def table_of(full: bool, body: str | None) -> BatchPrinter:
    return BatchPrinter(MessageForm(full=full, body=body, as_json=False))


def test_rows_fit_the_width_and_begin_with_their_values(
    store: GoldenStore, terminal: Callable[..., list[str]]
) -> None:
    header, *lines = terminal(find.cat, store.path, "--topic", "orders")
    names = ["topic", "queueId", "queueOffset", "storeTimestamp", "tags", "keys", "body"]
    assert header.split() == names
    assert all(cell_len(line) <= WIDTH for line in lines)
    assert [line.split()[:3] for line in lines] == [
        ["orders", str(one["queueId"]), str(one["queueOffset"])] for one in sent_to(store, "orders")
    ]
    cut = [line for line in lines if line.endswith("…")]
    assert cut
    whole = terminal(find.cat, store.path, "--topic", "orders", "--full")[1:]
    printed = run("cat", store.path, "--topic", "orders").splitlines()
    bodies = [line.split("\t")[-1] for line in printed]
    assert all(line.endswith(body) for line, body in zip(whole, bodies, strict=True))


@pytest.mark.parametrize("form", ["text", "json", "base64", "hex", "none"])
def test_bodies_have_the_form_that_is_asked_for(
    store: GoldenStore, terminal: Callable[..., list[str]], form: str
) -> None:
    """In a terminal and in a pipe alike."""
    words = [store.path, "--topic", "orders", "--limit", "20", "--body", form]
    rows = terminal(find.find, *words, "--full")
    piped = [line.split("\t") for line in run("find", *words).splitlines()]
    if form == "none":
        assert rows[0].split()[-1] == "keys"
        assert {len(cells) for cells in piped} == {6}
        return
    assert len(rows) == 21
    for row, cells, one in zip(rows[1:], piped, sent_to(store, "orders")[:20], strict=True):
        assert row.endswith(cells[-1])
        if form == "hex":
            assert bytes.fromhex(cells[-1])
        assert one["queueOffset"] == int(cells[2])


def test_a_body_is_no_command_for_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    on_a_terminal(monkeypatch)
    foreign = [b"\x1b]0;title\x07\x9b", "\u202e[red]\x9b2J".encode(), b"a\r\nb\tc", b"", None]
    wide = ["\u6f22" * 100, "e\u0301" * 100, "x"]
    bodies = [*foreign, JSON, *(text.encode() for text in wide)]
    batch = pa.RecordBatch.from_arrays(
        [pa.array([f"t\x1b{n}" for n in range(len(bodies))]), pa.array(bodies, pa.binary())],
        names=["topic", "body"],
    )
    for full in (False, True):
        for form in (None, "text", "json", "base64", "hex"):
            table_of(full, form).print([batch])
            printed = capsys.readouterr().out
            assert set(re.findall(r"[\x00-\x1f\x7f-\x9f\u202e]", printed)) <= {"\n"}
            lines = printed.splitlines()
            assert len(lines) == 1 + len(bodies)
            if not full:
                assert all(cell_len(line) <= 60 for line in lines)
            if full and form in (None, "json"):
                assert lines[6].endswith(ONE_LINE)
            assert "\\u001b1" in lines[2]


def test_the_header_comes_once_and_the_widths_stay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of `tail -f`: a later message has a longer topic and a larger offset."""
    monkeypatch.setenv("COLUMNS", "80")
    on_a_terminal(monkeypatch)
    table = table_of(False, None)
    for topic, offset in (("orders", 7), ("a-much-longer-topic", 12345678901)):
        columns = [pa.array([topic]), pa.array([offset]), pa.array([b"x" * 99])]
        batch = pa.RecordBatch.from_arrays(columns, names=["topic", "queueOffset", "body"])
        table.print([batch])
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.index("body") == first.index("x") == second.index("x")
    assert "a-much…opic" not in first
    assert "…" in second.split()[0]
    assert second.startswith("a-mu")
    assert "12345678901" in second


def test_the_forms_of_bodies() -> None:
    column = pa.array([b"a\xffb", JSON, None, b"", b"[1, 2"], pa.binary())
    assert bodies_as("text", column).to_pylist() == ["a\\xffb", JSON.decode(), None, "", "[1, 2"]
    assert bodies_as("json", column).to_pylist() == ["a\\xffb", ONE_LINE, None, "", "[1, 2"]
    assert bodies_as("hex", column.slice(1)).to_pylist() == [JSON.hex(), None, "", b"[1, 2".hex()]
    deep = b"[" * 100_000
    assert bodies_as("json", pa.array([deep])).to_pylist() == [deep.decode()]


def test_body_and_json_exclude_each_other(store: GoldenStore) -> None:
    done = call("cat", store.path, "--topic", "orders", "--body", "hex", "--json")
    assert (done.returncode, "--body is for text" in done.stderr) == (2, True)
    done = call("tail", store.path, "--columns", "body", "--body", "none")
    assert (done.returncode, "no column" in done.stderr) == (2, True)


def test_tail_prints_one_header_and_keeps_its_widths(
    store: GoldenStore, terminal: Callable[..., list[str]]
) -> None:
    """A later batch has longer values than the first."""
    header, *lines = terminal(tail.tail, store.path, "-n", "3")
    assert sum(line.split() == header.split() for line in lines) == 0
    at = header.index("storeTimestamp")
    assert len({line[at : at + 5] for line in lines} - {"2026-"}) == 0
