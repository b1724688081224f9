"""rmqstore sql."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.command import command
from rmq_store.cli.messages import BODY, FULL, RAW, Damage
from rmq_store.cli.options import (
    HISTORY,
    JSON,
    KEYS,
    SINCE,
    SKIP_DAMAGED,
    STORE,
    SYSTEM,
    UNTIL,
    StoreArgs,
    StorePath,
    argument,
    flag,
    opened_stores,
    option,
    time_range,
    word,
)
from rmq_store.cli.printing import cell, print_json, print_rows, say
from rmq_store.escaping import printable
from rmq_store.text.progress import Progress
from rmq_store.text.times import Time

if TYPE_CHECKING:
    from rmq_store.sql.database import Explained, StoreDatabase
    from rmq_store.store import MessageStore


@command
def sql(
    at: StoreArgs = STORE,
    query: str | None = argument(metavar="[SQL]", required=False),
    others: tuple[str, ...] = option(
        "--store",
        multiple=True,
        type=StorePath(),
        help="Another store, or a pattern of some; repeatable. Column brokerName names the store of a row.",
    ),
    keys: tuple[str, ...] = KEYS,
    begin: Time | None = SINCE,
    end: Time | None = UNTIL,
    system: bool = SYSTEM,
    skip_damaged: bool = SKIP_DAMAGED,
    raw: bool = RAW,
    history: bool = HISTORY,
    zone: str = option(
        "--zone",
        type=word,
        metavar="ZONE",
        default="UTC",
        show_default=True,
        help="Time zone of days and hours in the query, such as Asia/Shanghai.",
    ),
    explain: bool = flag("--explain", help="Show what of the stores the query would read."),
    files: bool = flag("--files", help="Let the query read and write other files."),
    parquet: Path | None = option(
        "--parquet",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write the rows into a new Parquet file.",
    ),
    as_csv: bool = flag("--csv", help="Print CSV: bodies as base64."),
    full: bool = FULL,
    body: str | None = BODY,
    as_json: bool = JSON,
) -> bool:
    """Ask in SQL, by DuckDB: views are messages and the tables of rmqstore table.

    STORE may be a pattern such as '/data/*/store'. Without SQL it is read from stdin; in a
    terminal there is a prompt. Needs pip install 'rmqstore[sql]'.
    """
    from rmq_store.cli.query_output import CSV, JSON, TEXT, check_file
    from rmq_store.sql.libraries import require_duckdb

    if sum((as_json, as_csv, parquet is not None, explain and parquet is not None)) > 1:
        raise click.UsageError("--json, --csv and --parquet exclude each other")
    if body is not None and (as_json or as_csv or parquet is not None):
        raise click.UsageError(
            "--body is for text: --json, --csv and --parquet have the whole body"
        )
    require_duckdb()
    form = JSON if as_json else CSV if as_csv else TEXT
    text = _given_sql(query, parquet)
    damage = Damage(skip_damaged)
    with ExitStack() as stack:
        stack.enter_context(damage)
        stores = stack.enter_context(opened_stores(at, others))
        if parquet is not None:
            check_file(parquet, [str(one.path) for one in stores])
        how: dict[str, Any] = {
            "keys": keys or None,
            "include_system_topics": system,
            "unwrap_batches": not raw,
            "compacted": not history,
            "on_damage": damage.once if skip_damaged else None,
        }
        database = stack.enter_context(_database(stores, begin, end, files, zone, how))
        if text is None:
            from rmq_store.cli.sql_prompt import prompt

            prompt(lambda one: _run(database, one, form, None, explain, full, body))
        else:
            _run(database, text, form, parquet, explain, full, body)
    return damage.conclude()


def _given_sql(query: str | None, parquet: Path | None) -> str | None:
    """The SQL of the argument or of stdin; None for a prompt."""
    if query is not None and query != "-":
        return query
    if query is None and sys.stdin.isatty():
        if not sys.stdout.isatty() or parquet is not None:
            raise click.UsageError("missing argument SQL: a prompt is for a terminal")
        return None
    return sys.stdin.buffer.read().decode("utf-8", "surrogateescape")


def _database(
    stores: Sequence[MessageStore],
    begin: Time | None,
    end: Time | None,
    files: bool,
    zone: str,
    how: dict[str, Any],
) -> StoreDatabase:
    from rmq_store.dataset.message_dataset import messages_of
    from rmq_store.sql.database import StoreDatabase

    since, until = time_range(stores, begin, end)
    messages = messages_of(stores, since=since, until=until, **how)
    return StoreDatabase(messages, stores, files=files, zone=zone, on_damage=how["on_damage"])


def _run(
    database: StoreDatabase,
    query: str,
    form: str,
    parquet: Path | None,
    explain: bool,
    full: bool,
    body: str | None,
) -> None:
    """Run statements and print what they give."""
    from rmq_store.cli.query_output import QueryPrinter, say_written, write_parquet

    if explain:
        _print_explained(database.explained(query), form)
        return
    with Progress("sql", unit="rows", measure=lambda: database.rows_read) as progress:
        printer = QueryPrinter(form, full=full, body=body, progress=progress)
        for answer in database.answers(query, only_one=form != "text" or parquet is not None):
            if answer.plan is not None:
                progress.pause()
                click.echo("\n".join(map(printable, answer.plan.splitlines())))
                if answer.explained is not None:
                    _print_explained(answer.explained, form)
            elif answer.rows is not None and parquet is not None:
                say_written(parquet, write_parquet(answer.rows, parquet))
            elif answer.rows is not None:
                printer.print(answer.rows)


_EXPLAINED = (
    "scan",
    "view",
    "brokerName",
    "topic",
    "queueId",
    "startOffset",
    "stopOffset",
    "messages",
    "keys",
    "columns",
    "filter",
)
_SHOWN = _EXPLAINED[:-2]


def _print_explained(found: Explained, form: str) -> None:
    """Print the ranges of queues that are read, and of each scan the columns and the filter."""
    rows = list(_rows_of(found))
    if form == "json":
        for row in rows:
            print_json(row)
    else:
        for number, scan in enumerate(found.scans, 1):
            wanted = "all rows" if scan.filter is None else f"filter {scan.filter}"
            say(f"scan {number} of {scan.view}: {', '.join(scan.columns)}; {wanted}")
        of_messages = [row for row in rows if row["topic"] is not None]
        if of_messages:
            print_rows(_SHOWN, ([cell(row[name]) for name in _SHOWN] for row in of_messages))
    if found.missed:
        say(
            f"rmqstore: {found.missed} more reads depend on rows, which --explain does not read",
            err=True,
        )


def _rows_of(found: Explained) -> Iterator[dict[str, Any]]:
    for number, scan in enumerate(found.scans, 1):
        empty = dict.fromkeys(_EXPLAINED)
        about = {"scan": number, "view": scan.view}
        about |= {"columns": list(scan.columns), "filter": scan.filter}
        ranges = [(part, one) for part in scan.parts or () for one in part.slices]
        for part, one in ranges:
            yield {
                **empty,
                **about,
                "brokerName": part.store.broker_name,
                "topic": one.queue.topic,
                "queueId": one.queue.queue_id,
                "startOffset": one.start,
                "stopOffset": one.stop,
                "messages": len(one),
                "keys": None if part.words is None else " || ".join(sorted(part.words)),
            }
        if not ranges:
            yield {**empty, **about, "messages": None if scan.parts is None else 0}
