"""rmqstore sql, and its prompt: statements of several lines, commands with a dot, history and completion."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from rmq_store.cli import options
from rmq_store.cli.command import command
from rmq_store.cli.messages import BODY, DAMAGE, FULL, RAW, MessageForm, SkippedDamage
from rmq_store.cli.options import StoreArgs, argument, flag, option, options_as_one
from rmq_store.cli.output import Output, note, print_line, problem
from rmq_store.errors import (
    AccessError,
    InvalidArgumentError,
    TargetExistsError,
    from_os_error,
    require_extra,
)
from rmq_store.text.progress import Progress
from rmq_store.text.sizes import counted
from rmq_store.text.times import Time

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store.sql.database import ExplainedQuery, StoreDatabase
import re
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from rmq_store.arrow.column_definitions import COLUMNS
from rmq_store.errors import StoreError, nearest
from rmq_store.tables import TABLES_OF_A_STORE

if TYPE_CHECKING:
    from rmq_store.sql.database import StoreDatabase

_FIRST, _NEXT = "rmqstore> ", "      ... "
_MOST_LINES = 1000  # of the history
_ENDS = ("exit", "quit", "\\q")
_LISTED = re.compile(r"\\G;?\s*$")
_ABOUT_MESSAGES = {
    "messages": "the messages of users' topics",
    "rawMessages": "the same with the columns on request, such as rawBody",
}
_HELP = (
    "A statement ends with ; or, to have each value of a row in a line of its own, with \\G.",
    ".tables         the views",
    ".schema VIEW    the columns of a view",
    ".exit           the end, as ctrl-D",
    "Tab completes names; ctrl-C ends the statement that runs, or drops what is typed.",
)

Run = Callable[[str, bool], int | None]
"""Runs statements, with each value in a line of its own if the second argument says so. Returns the number
of rows; None without any."""


class Prompt:
    """Reads statements and commands in a terminal until ctrl-D, and runs each. Errors are printed."""

    def __init__(self, database: StoreDatabase, run: Run) -> None:
        self._database, self._run = database, run
        self._commands: Mapping[str, Callable[[str], None]] = {
            ".tables": self._print_views,
            ".schema": self._print_columns,
            ".help": self._print_help,
            ".exit": lambda _: _end(),
        }

    def read(self) -> None:
        """Read and run until the end. Ctrl-C drops what is typed, or ends the statement that runs."""
        print_line(f"Times are in {self._database.zone}. .help says what to type.")
        typed: list[str] = []
        with self._history(), suppress(EOFError):
            while True:
                try:
                    typed.append(input(_NEXT if typed else _FIRST))
                    text = "\n".join(typed)
                    if _is_whole(text):
                        typed = []
                        self._do(text.strip())
                except KeyboardInterrupt:
                    typed = []
                    click.echo()
                except StoreError as error:
                    problem(str(error))
        click.echo()

    def _do(self, text: str) -> None:
        """Run a statement, or a command, and say how long it took."""
        name, _, rest = text.rstrip("; ").partition(" ")
        name = name.lower()
        if name in _ENDS:
            _end()
        if name in ("help", "?"):
            name = ".help"
        if name.startswith("."):
            command = self._commands.get(name)
            if command is None:
                problem(f"there is no command {name}. {nearest(name, self._commands)}")
            else:
                command(rest.strip())
        elif name:
            began = monotonic()
            count = self._run(_LISTED.sub(";", text), bool(_LISTED.search(text)))
            rows = "" if count is None else f"{counted(count, 'row')}, "
            note(f"{rows}{monotonic() - began:.2f} s")

    def _print_help(self, _: str) -> None:
        for line in _HELP:
            print_line(line)

    def _print_views(self, _: str) -> None:
        about = {name: table.about for name, table in TABLES_OF_A_STORE.items()} | _ABOUT_MESSAGES
        rows = [{"view": name, "meaning": about[name]} for name in self._database.views]
        Output(False).rows(rows)

    def _print_columns(self, view: str) -> None:
        name = {name.lower(): name for name in self._database.views}.get(view.lower())
        if name is None:
            wrong = f"there is no view {view!r}" if view else ".schema takes the name of a view"
            problem(f"{wrong}. {nearest(view, self._database.views)}")
            return
        table = TABLES_OF_A_STORE.get(name)
        columns: Any = COLUMNS if table is None else table.columns
        meanings = {column.name: column.meaning for column in columns}
        types = self._database.types(name)
        rows = [{"column": c, "type": kind, "meaning": meanings[c]} for c, kind in types]
        Output(False).rows(rows)

    @contextmanager
    def _history(self) -> Iterator[None]:
        """Have earlier lines at hand, and completion. They may name customers: nobody else reads them."""
        try:
            import readline
        except ImportError:
            yield
            return
        state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        path = Path(state) / "rmqstore" / "sql_history"
        with suppress(OSError):
            readline.read_history_file(path)
        matching: list[str] = []

        def complete(typed: str, number: int) -> str | None:
            if number == 0:
                matching[:] = [
                    word.upper() if typed.isupper() and word.islower() else word
                    for word in dict.fromkeys(self._words(readline.get_line_buffer()))
                    if word.lower().startswith(typed.lower())
                ]
            return matching[number] if number < len(matching) else None

        readline.set_completer(complete)
        is_libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
        try:
            yield
        finally:
            readline.set_history_length(_MOST_LINES)
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(mode=0o600)
                readline.write_history_file(path)

    def _words(self, line: str) -> Iterator[str]:
        """What may come in a line: commands, views, the columns of those that it names, or of all."""
        if line.startswith("."):
            yield from self._commands
        views = self._database.views
        yield from views
        named = [name for name in views if name.lower() in line.lower()]
        for name in named or views:
            yield from views[name].schema.names
        if not line.startswith("."):
            yield from self._database.keywords()


def _is_whole(text: str) -> bool:
    first = text.strip().split(" ")[0].lower().rstrip(";")
    is_command = first.startswith(".") or first in ("", "help", "?", *_ENDS)
    ends = text.rstrip().endswith(";") or _LISTED.search(text) is not None
    return ends or (is_command and "\n" not in text)


def _end() -> None:
    raise EOFError


_FORM = options_as_one(
    MessageForm,
    as_csv=flag("--csv", help="Print CSV: bodies as base64."),
    full=FULL,
    body=BODY,
    as_json=options.JSON,
)
_EXPLAINED = (
    *("scan", "view", "brokerName", "topic", "queueId", "startOffset", "stopOffset", "messages"),
    *("keys", "columns", "filter"),
)


@command
def sql(
    at: StoreArgs = options.STORE,
    query: str | None = argument(metavar="[SQL]", required=False),
    others: tuple[str, ...] = option(
        "--store",
        multiple=True,
        type=options.StorePath(),
        help="Another store, or a pattern; repeatable. brokerName names the store of a row.",
    ),
    keys: tuple[str, ...] = options.KEYS,
    begin: Time | None = options.SINCE,
    end: Time | None = options.UNTIL,
    system: bool = options.SYSTEM,
    damage: SkippedDamage = DAMAGE,
    raw: bool = RAW,
    history: bool = options.HISTORY,
    zone: tzinfo = options.ZONE,
    explain: bool = flag("--explain", help="Show what of the stores the query would read."),
    files: bool = flag("--files", help="Let the query read and write other files."),
    parquet: Path | None = option(
        "--parquet",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write the rows into a new Parquet file.",
    ),
    form: MessageForm = _FORM,
) -> bool:
    """Ask in SQL, by DuckDB: views are messages and the tables of rmqstore table.

    STORE may be a pattern such as '/data/*/store'. Without SQL it is read from stdin; in a
    terminal there is a prompt. Needs pip install 'rmqstore[sql]'.

    Examples:
        rmqstore sql /data/store "SELECT topic, count(*) FROM messages GROUP BY ALL"
        rmqstore sql /data/store "SELECT * FROM groups WHERE lag > 100" --csv
        # the messages of the last hour as a Parquet file
        rmqstore sql /data/store "FROM messages" --since -1h --parquet hour.parquet
    """

    to_file = parquet is not None
    if sum((form.as_json, form.as_csv, to_file, explain and to_file)) > 1:
        raise click.UsageError("--json, --csv and --parquet exclude each other")
    if form.body is not None and (form.as_json or form.as_csv or to_file):
        raise click.UsageError(
            "--body is for text: --json, --csv and --parquet have the whole body"
        )
    require_extra("sql")
    from rmq_store.dataset.message_dataset import messages_of
    from rmq_store.sql.database import StoreDatabase

    text = _given_sql(query, parquet)
    with ExitStack() as stack:
        stack.enter_context(damage)
        stores = stack.enter_context(options.opened_stores(at, others))
        if parquet is not None:
            _check_file(parquet, [str(one.path) for one in stores])
        since, until = options.time_range(stores, begin, end)
        messages = messages_of(
            stores,
            keys=keys or None,
            since=since,
            until=until,
            include_system_topics=system,
            unwrap_batches=not raw,
            compacted=not history,
            on_damage=damage.handler,
        )
        source = click.get_current_context().get_parameter_source("zone")
        # A person at a prompt thinks in the time of the clock on the wall.
        is_local = text is None and source is ParameterSource.DEFAULT
        named = None if is_local else str(zone)
        database = stack.enter_context(
            StoreDatabase(messages, stores, files=files, zone=named, on_damage=damage.handler)
        )

        def run(statement: str, is_listed: bool) -> int | None:
            return _run(database, statement, replace(form, is_listed=is_listed), parquet, explain)

        if text is None:
            from rmq_store.cli.commands.sql import Prompt

            Prompt(database, run).read()
        else:
            run(text, False)
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


def _run(
    database: StoreDatabase, query: str, form: MessageForm, parquet: Path | None, explain: bool
) -> int | None:
    """Run statements and print what they give. Returns the rows; None without any."""
    from rmq_store.cli.batch_printer import BatchPrinter

    if explain:
        _print_explained(database.explained(query), form)
        return None
    printed: int | None = None
    only_one = form.as_json or form.as_csv or parquet is not None
    with Progress("sql", unit="rows", measure=lambda: database.rows_read) as progress:
        for answer in database.answers(query, only_one=only_one):
            if answer.plan is not None:
                progress.pause()
                for line in answer.plan.splitlines():
                    print_line(line)
                if answer.explained is not None:
                    _print_explained(answer.explained, form)
            elif answer.rows is not None and parquet is not None:
                note(f"{parquet}: {counted(_write_parquet(answer.rows, parquet), 'row')}")
            elif answer.rows is not None:
                printed = (printed or 0) + BatchPrinter(form, progress).print_query(answer.rows)
    return printed


def _print_explained(plan: ExplainedQuery, form: MessageForm) -> None:
    rows = list(_rows_of(plan))
    if not form.as_json:
        for number, scan in enumerate(plan.scans, 1):
            wanted = "all rows" if scan.filter is None else f"filter {scan.filter}"
            print_line(f"scan {number} of {scan.view}: {', '.join(scan.columns)}; {wanted}")
        rows = [row for row in rows if row["topic"] is not None]
    if rows:
        Output(form.as_json).rows(rows, _EXPLAINED[:-2])
    if plan.missed:
        problem(f"{plan.missed} more reads depend on rows, which --explain does not read")


def _rows_of(found: ExplainedQuery) -> Iterator[dict[str, Any]]:
    for number, scan in enumerate(found.scans, 1):
        about = dict.fromkeys(_EXPLAINED) | {"scan": number, "view": scan.view}
        about |= {"columns": list(scan.columns), "filter": scan.filter}
        ranges = [(part, slice_) for part in scan.parts or () for slice_ in part.ranges]
        for part, slice_ in ranges:
            yield about | {
                "brokerName": part.store.broker_name,
                "topic": slice_.queue.topic,
                "queueId": slice_.queue.queue_id,
                "startOffset": slice_.start,
                "stopOffset": slice_.stop,
                "messages": len(slice_),
                "keys": None if (keys := part.indexed_keys) is None else " || ".join(sorted(keys)),
            }
        if not ranges:
            yield about | {"messages": None if scan.parts is None else 0}


def _check_file(target: Path, stores: list[str]) -> None:
    """Raise unless a new file can be made, outside of the stores."""
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


def _write_parquet(rows: pa.RecordBatchReader, target: Path) -> int:
    """A new file, which is there when it is whole. Returns the number of rows."""
    import pyarrow as pa
    from pyarrow import parquet

    unfinished, count = target.with_name(f".{target.name}.part"), 0
    try:
        with parquet.ParquetWriter(unfinished, rows.schema, compression="zstd") as writer:
            for batch in rows:
                writer.write_batch(batch)
                count += batch.num_rows
        os.link(unfinished, target)  # never over a file that came meanwhile
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
            unfinished.unlink()
    return count
