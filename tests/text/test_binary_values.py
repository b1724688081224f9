"""Binary values as text, against Python's own codecs, and batches as lines of JSON."""

from __future__ import annotations

import base64
import json
import random

import pyarrow as pa
import pytest

from rmq_store.errors import InvalidArgumentError
from rmq_store.text import bodies
from rmq_store.text.bodies import base64_of, text_and_base64
from rmq_store.text.lines import json_lines

_MALFORMED = (
    *(b"\xff", b"\xff\n", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"),
    *(b"\xf5\x80\x80\x80", b"\xe2\x82", b"a\xc3", b"\x80"),
)


def decoded(raw: bytes | None) -> str | None:
    try:
        return None if raw is None else raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def encoded(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode("ascii")


def values() -> list[bytes | None]:
    """Nulls, random bytes, text of all planes, and malformed UTF-8."""
    dice = random.Random(20261122)
    noise = [dice.randbytes(dice.randrange(12)) for _ in range(3000)]
    planes = ((0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x110000))
    texts = [
        "".join(chr(dice.randrange(*dice.choice(planes))) for _ in range(dice.randrange(6)))
        for _ in range(3000)
    ]
    found = [None, b"", *_MALFORMED, *noise, *(text.encode() for text in texts), None]
    dice.shuffle(found)
    return found


@pytest.mark.parametrize("skipped", [0, 3])
def test_each_value_is_text_or_base64(skipped: int) -> None:
    expected = values()
    column = pa.array([*([b"before"] * skipped), *expected], pa.binary())[skipped:]
    text, binary = text_and_base64(column)
    assert binary is not None
    for array in (text, binary, base64_of(column)):
        array.validate(full=True)
    assert text.to_pylist() == [decoded(raw) for raw in expected]
    others = [encoded(raw) if decoded(raw) is None else None for raw in expected]
    assert binary.to_pylist() == others
    assert base64_of(column).to_pylist() == [encoded(raw) for raw in expected]


@pytest.mark.parametrize("few", [[], [None], [b""], [b"abc"]])
def test_few_values(few: list[bytes | None]) -> None:
    assert base64_of(pa.array(few, pa.binary())).to_pylist() == [encoded(raw) for raw in few]
    assert text_and_base64(pa.array(few, pa.binary()))[1] is None


def test_more_than_a_column_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_LARGEST", 100)
    assert base64_of(pa.array([b"x" * 70])).to_pylist() == [encoded(b"x" * 70)]
    with pytest.raises(InvalidArgumentError, match="maxBodyBytes"):
        base64_of(pa.array([b"x" * 80]))


def test_a_line_depends_on_no_other_row() -> None:
    rows = pa.record_batch({"body": pa.array([b"text", b"\xff\x00", b"", None]), "n": [1, 2, 3, 4]})
    lines = json_lines(rows).splitlines(keepends=True)
    assert lines == [json_lines(rows.slice(i, 1)) for i in range(4)]
    assert [json.loads(line) for line in lines] == [
        {"body": "text", "n": 1},
        {"body": None, "bodyBase64": "/wA=", "n": 2},
        {"body": "", "n": 3},
        {"body": None, "n": 4},
    ]


def test_a_map_that_is_null_is_null() -> None:
    kind = pa.map_(pa.string(), pa.string())
    rows = pa.record_batch({"properties": pa.array([None, [], [("a", '"b"')]], kind)})
    lines = [json.loads(line) for line in json_lines(rows).splitlines()]
    assert [line["properties"] for line in lines] == [None, {}, {"a": '"b"'}]
