"""Bodies that are text of another charset: shown, printed as JSON, found and exported as such."""

from __future__ import annotations

import base64
import csv
import json
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_store import MessageStore
from rmq_store.cli.batch_printer import BatchPrinter
from rmq_store.cli.messages import MessageForm
from rmq_store.errors import InvalidArgumentError
from rmq_store.text.bodies import bodies_as, charset_named, text_and_base64
from rmqstore_jobs.export import ExportSpec
from rmqstore_jobs.export import run as export
from tests.support.running.commands import call, complaint, objects, run

TEXT = '{"name": "订单"}'
BODIES = [TEXT.encode("gbk"), b"plain", b"\x81", b"", "é".encode()]
# Two bytes that GBK has a character for, and UTF-8 another one.
SHOWN = [TEXT, "plain", "base64:gQ==", "", "é".encode().decode("gbk")]


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = tmp_path / "store"
    with MessageStore.create(path, {"mappedFileSizeCommitLog": 1 << 20}) as writer:
        for body in BODIES:
            writer.append({"topic": "orders", "queueId": 0, "body": body, "keys": "订单"})
    return str(path)


def test_text_and_base64_of_a_charset() -> None:
    column = pa.array([*BODIES, None], pa.binary())
    text, other = text_and_base64(column, "gbk")
    assert text.to_pylist() == [TEXT, "plain", None, "", SHOWN[-1], None]
    assert other is not None
    assert other.to_pylist() == [None, None, "gQ==", None, None, None]
    assert text_and_base64(column.slice(0, 2), "gbk")[1] is None


@pytest.mark.parametrize(
    ("name", "known"),
    [("GBK", "gbk"), ("UTF-8", "utf-8"), ("Shift_JIS", "shift_jis"), ("ISO-8859-1", "iso8859-1")],
)
def test_charsets_have_the_names_of_java_and_python(name: str, known: str) -> None:
    assert charset_named(name) == known


@pytest.mark.parametrize("name", ["gbkk", "hex", "rot13", "", "zlib"])
def test_what_is_no_charset_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="there is no charset"):
        charset_named(name)


@pytest.mark.parametrize(
    ("charset", "body", "expected"),
    [
        ("utf-7", b"a+2AA-", "a\\ud800"),  # half of a character
        ("unicode_escape", b"\\ud800", "\\ud800"),
        ("idna", b"\xffa", "\\xffa"),  # these codecs escape nothing
        ("punycode", b"\xffa-", "\\xffa-"),
        ("gbk", b"a\x81", "a\\x81"),
    ],
)
def test_bodies_of_no_charset_are_escaped_whatever_its_codec_does(
    charset: str, body: bytes, expected: str
) -> None:
    column = pa.array([body, b"plain", None], pa.binary())
    assert bodies_as("text", column, charset_named(charset))[0].as_py() == expected


@pytest.mark.parametrize("command", ["cat", "find"])
def test_commands_print_bodies_of_a_charset(store: str, command: str) -> None:
    words = (command, store, "--topic", "orders", "--columns", "keys,body", "--charset", "GBK")
    lines = [line.split("\t") for line in run(*words).splitlines()]
    assert [body for _, body in lines] == SHOWN
    assert {key for key, _ in lines} == {"订单"}
    found = objects(*words)
    assert [row["body"] for row in found] == [
        None if one.startswith("base64") else one for one in SHOWN
    ]
    assert [row.get("bodyBase64") for row in found] == [None, None, "gQ==", None, None]
    as_text = run(*words, "--body", "text").splitlines()
    assert as_text[2].split("\t")[1] == "\\x81"
    assert run(*words, "--body", "json").splitlines()[0].split("\t")[1] == '{"name":"订单"}'
    assert run(*words, "--body", "hex").splitlines()[0].split("\t")[1] == BODIES[0].hex()
    plain = run(*words[:-2]).splitlines()
    assert plain[0].split("\t")[1] == f"base64:{base64.b64encode(BODIES[0]).decode()}"
    said = complaint(*words[:-1], "gbkk", expect=2)
    assert "there is no charset 'gbkk'. Did you mean 'gbk'?" in said


def test_a_terminal_shows_bodies_of_a_charset(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    form = MessageForm(full=True, body=None, as_json=False, charset="gbk")
    BatchPrinter(form).print([pa.record_batch({"body": BODIES[:3], "rawBody": BODIES[:3]})])
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines[0].startswith('{"name":"订单"}')
    # Another column may be compressed: it is no text of the charset.
    assert lines[0].endswith(f"base64:{base64.b64encode(BODIES[0]).decode()}")


def test_a_text_is_found_in_bodies_of_a_charset(store: str) -> None:
    words = ("find", store, "--topic", "orders", "--text", "订单", "--columns", "queueOffset")
    assert objects(*words, "--charset", "gbk") == [{"queueOffset": 0}]
    assert call(*words).returncode == 1
    assert "cannot be written in charset ascii" in complaint(*words, "--charset", "ascii", expect=2)


@pytest.mark.parametrize("table", ["csv", "jsonl"])
def test_an_export_has_bodies_of_a_charset(store: str, tmp_path: Path, table: str) -> None:
    target = tmp_path / "out"
    assert export(None, ExportSpec(store, str(target), format=table, charset="gbk")).ok
    (file,) = target.rglob(f"*.{table}")
    if table == "csv":
        with file.open(encoding="utf-8", newline="") as lines:
            assert [row["body"] for row in csv.DictReader(lines)] == SHOWN
    else:
        rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        assert [row["body"] or row.get("bodyBase64", "") for row in rows] == [
            one.removeprefix("base64:") for one in SHOWN
        ]


def test_an_export_keeps_its_charset(store: str, tmp_path: Path) -> None:
    target = str(tmp_path / "out")
    done = call("export", store, "--to", target, "--format", "csv", "--charset", "GBK")
    assert done.returncode == 0, done.stderr
    assert "charset=gbk" in complaint("export", store, "--to", target, "--format", "csv", expect=2)
    said = complaint("export", store, "--to", str(tmp_path / "p"), "--charset", "gbk", expect=2)
    assert "--format csv or jsonl" in said


def test_json_with_a_byte_order_mark_is_json() -> None:
    stored = '\ufeff{"a": [1, 2]}'.encode()
    column = pa.array([stored, b'{"a": 1}', "\ufeffno json".encode()], pa.binary())
    assert bodies_as("json", column).to_pylist() == ['{"a":[1,2]}', '{"a":1}', "\ufeffno json"]
