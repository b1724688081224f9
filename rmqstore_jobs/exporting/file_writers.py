"""Writers of files of messages, one for each format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from rmq_store.text.lines import json_lines, text_columns
from rmqstore_jobs.exporting.manifest import CSV, JSONL, PARQUET


class FileWriter(Protocol):
    """A file that is being written."""

    def write_table(self, table: pa.Table) -> None:
        """Add rows."""

    def close(self) -> None:
        """Complete the file."""


OpenWriter = Callable[[Path, pa.Schema], FileWriter]


class _CsvFile:
    """CSV with a header. What CSV has no type for is text (`text_columns`)."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._writer = pa_csv.CSVWriter(path, text_columns(_no_rows(schema)).schema)

    def write_table(self, table: pa.Table) -> None:
        for batch in table.to_batches():
            self._writer.write_batch(text_columns(batch))

    def close(self) -> None:
        self._writer.close()


class _JsonLinesFile:
    """A line of JSON for each message, as `rmqstore cat --json` prints it."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._file = path.open("wb")

    def write_table(self, table: pa.Table) -> None:
        for batch in table.to_batches():
            self._file.write(json_lines(batch))

    def close(self) -> None:
        self._file.close()


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


WRITERS: Mapping[str, OpenWriter] = {
    PARQUET: pq.ParquetWriter,
    CSV: _CsvFile,
    JSONL: _JsonLinesFile,
}
"""The writers by format. A file's name ends in its format."""
