"""What a reader finds in the target of an export to files."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from rmq_store.arrow.column_definitions import BY_NAME
from rmqstore_jobs.exporting.manifest import CSV, JSONL, PARQUET

Row = dict[str, Any]


def rows_in(target: Path) -> list[Row]:
    """The rows of all files, topic and day out of the names of the folders."""
    rows = []
    for path in files_in(target):
        named = dict(part.split("=", 1) for part in path.relative_to(target).parts[:-1])
        rows += [{**row, **named} for row in rows_of(path)]
    return rows


def files_in(target: Path) -> list[Path]:
    """The files of all formats, without the folders that readers ignore."""
    found = (path for form in _ROWS_OF for path in target.rglob(f"*.{form}"))
    return sorted(p for p in found if not p.relative_to(target).parts[0].startswith("_"))


def rows_of(path: Path) -> list[Row]:
    """The rows of a file, with the values that Parquet has, whatever the format."""
    return _ROWS_OF[path.suffix.removeprefix(".")](path)


def _of_parquet(path: Path) -> list[Row]:
    rows: list[Row] = pq.ParquetFile(path).read().to_pylist()
    return rows


def _of_csv(path: Path) -> list[Row]:
    with path.open("rb") as file:
        names = [name.strip('"') for name in file.readline().decode().strip().split(",")]
    table = pa_csv.read_csv(
        path,
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return [
        {name: None if text is None else _value(name, text) for name, text in row.items()}
        for row in table.to_pylist()
    ]


def _value(name: str, text: str) -> Any:
    kind = BY_NAME[name].type
    if pa.types.is_binary(kind):
        return base64.b64decode(text, validate=True)
    if pa.types.is_map(kind):
        return list(json.loads(text).items())
    if pa.types.is_timestamp(kind):
        return _time(text)
    return int(text) if pa.types.is_integer(kind) else text


def _of_jsonl(path: Path) -> list[Row]:
    rows = []
    for line in path.read_text("utf-8").split("\n")[:-1]:
        read = json.loads(line)
        found: Row = {}
        for name, value in read.items():
            if name not in BY_NAME:
                encoded = name.removesuffix("Base64")
                assert found[encoded] is None
                found[encoded] = base64.b64decode(value, validate=True)
            else:
                found[name] = None if value is None else _plain(name, value)
        rows.append(found)
    return rows


def _plain(name: str, value: Any) -> Any:
    kind = BY_NAME[name].type
    if pa.types.is_binary(kind):
        return value.encode("utf-8")
    if pa.types.is_map(kind):
        return list(value.items())
    return _time(value) if pa.types.is_timestamp(kind) else value


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


_ROWS_OF: dict[str, Callable[[Path], list[Row]]] = {
    PARQUET: _of_parquet,
    CSV: _of_csv,
    JSONL: _of_jsonl,
}
