"""Batches as lines of JSON."""

from __future__ import annotations

import json

import pyarrow as pa

from rmq_store.text.lines import json_lines


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
