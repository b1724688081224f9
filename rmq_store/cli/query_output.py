"""Print or write what a query gives: a table, tab-separated text, JSON lines, CSV or Parquet."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.cli.messages import with_bodies
from rmq_store.cli.printing import make_room, say, write
from rmq_store.errors import AccessError, InvalidArgumentError, TargetExistsError, from_os_error
from rmq_store.escaping import printable
from rmq_store.text.lines import plain_text, text_columns, text_lines
from rmq_store.text.progress import Progress
from rmq_store.text.query_rows import printable_columns, query_json_lines
from rmq_store.text.sizes import counted

TEXT, JSON, CSV = "text", "json", "csv"


class QueryPrinter:
    """Prints the rows of queries in one form. `full`, `body`: as for messages."""

    def __init__(self, form: str, *, full: bool, body: str | None, progress: Progress) -> None:
        self._form, self._full, self._body, self._progress = form, full, body, progress

    def print(self, rows: pa.RecordBatchReader) -> None:
        """Print all rows of one query, as they come; in a pipe and as CSV also the names above them."""
        if self._form == JSON:
            for batch in rows:
                self._write(query_json_lines(batch))
        elif self._form == CSV:
            self._print_csv(rows)
        elif sys.stdout.isatty():
            self._print_table(rows)
        else:
            self._write("\t".join(map(printable, rows.schema.names)).encode() + b"\n")
            for batch in rows:
                plain = printable_columns(batch)
                self._write(
                    text_lines(plain if self._body is None else with_bodies(plain, self._body))
                )

    def _write(self, raw: bytes) -> None:
        make_room(self._progress)
        write(raw)

    def _print_table(self, rows: pa.RecordBatchReader) -> None:
        from rmq_store.cli.message_table import MessageTable  # it loads rich, for a terminal alone

        table, count = MessageTable(full=self._full, body=self._body), 0
        for batch in rows:
            make_room(self._progress)
            table.print(printable_columns(batch))
            count += batch.num_rows
        if not count:
            say("no rows", err=True)

    def _print_csv(self, rows: pa.RecordBatchReader) -> None:
        from pyarrow import csv

        empty = self._for_csv(pa.RecordBatch.from_pylist([], schema=rows.schema))
        with csv.CSVWriter(sys.stdout.buffer, empty.schema) as target:
            for batch in rows:
                make_room(self._progress)
                target.write_batch(self._for_csv(batch))

    def _for_csv(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        plain = text_columns(printable_columns(batch))
        return _escaped(plain) if sys.stdout.isatty() else plain


def _escaped(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows for a terminal: what it would act on is escaped."""
    columns = [
        pc.if_else(one.is_valid(), plain_text(one), one) if pa.types.is_string(one.type) else one
        for one in batch.columns
    ]
    names = [printable(name) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, names=names)


def check_file(target: Path, stores: list[str]) -> None:
    """Raise unless a new file can be made: TargetExistsError, InvalidArgumentError for one in a store, and
    AccessError for a folder that does not exist."""
    if target.exists():
        raise TargetExistsError(
            target, reason="the file exists", advice="Name another file, or delete it first"
        )
    folder = target.absolute().parent
    if not folder.is_dir():
        raise AccessError(target, reason="the folder does not exist", advice="Create it first")
    above = {folder.resolve(), *folder.resolve().parents}
    if above.intersection(Path(store).resolve() for store in stores):
        raise InvalidArgumentError(
            target, reason="nothing is written into a store", advice="Name a file elsewhere"
        )


def write_parquet(rows: pa.RecordBatchReader, target: Path) -> int:
    """Write all rows into a new Parquet file, which is there when it is whole. Returns their number.

    Raises InvalidArgumentError for a column of a type that Parquet does not have.
    """
    from pyarrow import parquet

    part, count = target.with_name(f".{target.name}.part"), 0
    try:
        with parquet.ParquetWriter(part, rows.schema, compression="zstd") as writer:
            for batch in rows:
                writer.write_batch(batch)
                count += batch.num_rows
        os.link(part, target)  # never over a file that came meanwhile
    except OSError as error:
        raise from_os_error(target, error, "writing it") from None
    except pa.ArrowNotImplementedError as error:
        raise InvalidArgumentError(
            target,
            reason=f"Parquet has no such column: {error}",
            advice="Cast it in the query, such as i::VARCHAR",
        ) from None
    finally:
        with suppress(OSError):
            part.unlink()
    return count


def say_written(target: Path, count: int) -> None:
    """Say on stderr what was written."""
    click.echo(f"{printable(target)}: {counted(count, 'row')}", err=True)
