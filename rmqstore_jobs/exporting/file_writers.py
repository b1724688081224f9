"""Writers of files of messages, one for each format."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from rmq_store.text.binary_values import UTF8, as_text
from rmq_store.text.bodies import marked
from rmq_store.text.lines import BASE64_SUFFIX, BODY, json_lines, text_columns
from rmqstore_jobs.exporting.manifest import CSV, JSONL, PARQUET


class FileWriter(Protocol):
    """A file that is being written."""

    def write_table(self, table: pa.Table) -> None:
        """Add rows."""

    def close(self) -> None:
        """Complete the file."""


OpenWriter = Callable[[Path, pa.Schema], FileWriter]


class _CsvFile:
    """CSV with a header. What CSV has no type for is text (`text_columns`).

    Bodies are base64; with a `charset` text of it, or `base64:...` where they are not of it.
    """

    def __init__(self, path: Path, schema: pa.Schema, charset: str | None = None) -> None:
        self._charset = charset
        empty = self._columns(pa.RecordBatch.from_pylist([], schema=schema))
        self._writer = pa_csv.CSVWriter(path, empty.schema)

    def _columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        at = batch.schema.get_field_index(BODY)
        if self._charset is not None and at >= 0:
            batch = batch.set_column(at, BODY, marked(batch.column(at), self._charset))
        return text_columns(batch)

    def write_table(self, table: pa.Table) -> None:
        for batch in table.to_batches():
            self._writer.write_batch(self._columns(batch))

    def close(self) -> None:
        self._writer.close()


class _TextParquetFile:
    """Parquet whose bodies are text of a charset; others are null, and base64 in a column of their own."""

    def __init__(self, path: Path, schema: pa.Schema, charset: str) -> None:
        self._charset = charset
        self._writer = pq.ParquetWriter(path, self._columns(schema.empty_table()).schema)

    def _columns(self, table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(BODY)
        if at < 0:
            return table
        body = table.column(at).combine_chunks()
        text, encoded = as_text(body, self._charset)
        encoded = pa.nulls(len(body), pa.string()) if encoded is None else encoded
        return table.set_column(at, BODY, text).add_column(at + 1, BODY + BASE64_SUFFIX, encoded)

    def write_table(self, table: pa.Table) -> None:
        self._writer.write_table(self._columns(table))

    def close(self) -> None:
        self._writer.close()


class _JsonLinesFile:
    """A line of JSON for each message, as `rmqstore cat --json` prints it."""

    def __init__(self, path: Path, schema: pa.Schema, charset: str | None = None) -> None:
        self._file, self._charset = path.open("wb"), charset or UTF8

    def write_table(self, table: pa.Table) -> None:
        for batch in table.to_batches():
            self._file.write(json_lines(batch, self._charset))

    def close(self) -> None:
        self._file.close()


TEXT_FORMATS = (CSV, JSONL)
"""Those whose bodies have a charset."""


def writer_of(format: str, charset: str | None) -> OpenWriter:
    """What opens a file of a format. A file's name ends in its format. `charset`: of bodies as text."""
    if format == PARQUET:
        return partial(_TextParquetFile, charset=charset) if charset else pq.ParquetWriter
    return partial(_CsvFile if format == CSV else _JsonLinesFile, charset=charset)
