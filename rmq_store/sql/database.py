"""A database in memory whose views are the messages and tables of stores."""

from __future__ import annotations

import json
import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from rmq_store.arrow import compute as pc
from rmq_store.arrow.column_definitions import COLUMNS, DEFAULT_NAMES, DICTIONARY, ENCODED
from rmq_store.dataset.lazy_dataset import Batches, LazyDataset
from rmq_store.dataset.message_dataset import MessageDataset
from rmq_store.errors import SqlError, StoreError, is_utf8, require_extra
from rmq_store.reading.query import OnDamage
from rmq_store.reading.store_reader import StoreReader
from rmq_store.scan.tasks import StoreScan
from rmq_store.tables import TABLES_OF_A_STORE
from rmq_store.tables.table import Table
from rmq_store.text.bodies import text_in_charset

MESSAGES, RAW_MESSAGES = "messages", "rawMessages"
_RAW_COLUMNS = [column.name for column in COLUMNS if column.name != "corruptRecord"]
_BATCH_ROWS = 8192
_AGAIN = 0.1  # seconds from one interrupt of a query to the next
_LOOKS_UP = 1.0  # seconds, after which who waits for a query looks whether ctrl-C came
_COUNTS = (["Count"], ["Success"])  # of statements that change something
_BLANKS = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)"
_EXPLAIN = re.compile(
    rf"{_BLANKS}*explain\b{_BLANKS}*(analyze\b{_BLANKS}*)?"
    rf"(?:\({_BLANKS}*(?:analyze|format)\b[^)]*\){_BLANKS}*)?",
    re.IGNORECASE | re.DOTALL,
)
# What lists views, or may, and what begins a transaction, whose end might undo a new view.
_NEEDS_ALL_VIEWS = re.compile(
    r"\b(?:show|describe|summarize|pragma|call|use|begin|start)\b|^\W*desc\W*$"
    r"|schema|catalog|duckdb|\b(?:pg|sqlite)_",
    re.IGNORECASE,
)
_WRITES_FILES = ("COPY", "EXPORT", "ATTACH")  # types of statements
# DuckDB gives a filter on a dictionary to the dataset from these releases of itself and of Arrow on.
_FILTERS_DICTIONARIES = (2, 26)
_NO_DOWNLOADS = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
}
# `text` and `json_of` are NULL for bytes that are no such text, so that a query needs no test of its own.
_MACROS = (
    "CREATE MACRO text(body, charset := 'utf-8') AS rmqstore_text(body, charset)",
    "CREATE MACRO json_of(body, charset := 'utf-8') AS "
    "try_cast(ltrim(rmqstore_text(body, charset), chr(65279)) AS JSON)",  # a byte order mark
)


class TableDataset(LazyDataset):
    """A table of several stores, one after the other. Each scan makes the rows again.

    `on_damage`: gets the errors of messages that a table about them leaves out; without it they are raised.
    """

    def __init__(
        self, table: Table, stores: Sequence[StoreReader], on_damage: OnDamage | None = None
    ) -> None:
        super().__init__(table.schema)
        self._table, self._stores, self._on_damage = table, tuple(stores), on_damage

    def __repr__(self) -> str:
        stores = ", ".join(repr(store.broker_name) for store in self._stores)
        return f"TableDataset({self._table.name!r}, {stores})"

    def _batches(self, columns: Sequence[str], wanted: Any) -> Batches:
        for opened in self._stores:
            with opened.reopen() as store, store.refusing_replacement():
                for piece in self._table.pieces(store, wanted=columns, on_damage=self._on_damage):
                    yield from piece.select(list(columns)).to_batches()


@dataclass(frozen=True, slots=True)
class ViewScan:
    """A read of a view that a query does. `parts`: what of the messages; None for a table."""

    view: str
    columns: tuple[str, ...]
    filter: str | None
    parts: Sequence[StoreScan] | None


@dataclass(slots=True)
class ExplainedQuery:
    """The reads of a query. `missed`: reads that depend on rows, which an explanation does not read."""

    scans: list[ViewScan] = field(default_factory=list)
    missed: int = 0


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What a statement gives. `rows`: None for a statement without any, such as CREATE VIEW."""

    rows: pa.RecordBatchReader | None
    plan: str | None = None  # of EXPLAIN, as DuckDB draws it
    explained: ExplainedQuery | None = (
        None  # of EXPLAIN, what it says of the stores; with ANALYZE none
    )


class StoreDatabase:
    """Runs SQL about stores in DuckDB. Views: `messages`, `rawMessages` with the columns on request too, and
    each table of `rmqstore table`.

    A view is read when a query names it. Stores are never changed; a query reaches no file and no
    network, unless `files`, and cannot allow itself to. A context manager.
    """

    def __init__(
        self,
        messages: MessageDataset,
        stores: Sequence[StoreReader],
        *,
        files: bool = False,
        zone: str | None = "UTC",
        on_damage: OnDamage | None = None,
    ) -> None:
        """`messages`: what that view has; `zone`: of the days and hours in queries, and of times in their
        rows; None: that of this machine; `on_damage`: see TableDataset.

        Raises SqlUnavailableError without DuckDB, SqlError for an unknown zone.
        """
        require_extra("sql")
        import duckdb

        self._error: type[Exception] = duckdb.Error
        releases = (duckdb.__version__, pa.__version__)
        self._takes_dictionaries = all(
            int(release.split(".")[0]) >= least
            for release, least in zip(releases, _FILTERS_DICTIONARIES, strict=True)
        )
        # DuckDB looks for ctrl-C between large pieces of work only, where it runs in the first thread.
        self._worker = ThreadPoolExecutor(1, "rmqstore-sql")
        self._failed: list[StoreError] = []
        self.rows_read = 0  # of all views, by all queries
        self._explained: ExplainedQuery | None = None
        self._database = duckdb.connect(":memory:", config=dict(_NO_DOWNLOADS))
        self._add_functions()
        self.views: Mapping[str, LazyDataset] = {
            MESSAGES: messages,
            RAW_MESSAGES: messages.with_columns(_RAW_COLUMNS),
            **{
                name: TableDataset(table, stores, on_damage)
                for name, table in TABLES_OF_A_STORE.items()
            },
        }
        self._unregistered = dict(self.views)
        spill = os.path.join(tempfile.gettempdir(), f"rmqstore-sql-{uuid.uuid4().hex}")
        if zone is not None:
            with self._saying_errors():
                self._database.execute(f"SET TimeZone = '{_quoted(zone)}'")
        self.zone = str(self._value("SELECT current_setting('TimeZone')"))
        self._database.execute(f"SET temp_directory = '{_quoted(spill)}'")
        if not files:
            self._database.execute("SET enable_external_access = false")
        self._database.execute("SET lock_configuration = true")

    def _add_functions(self) -> None:
        from duckdb.func import ARROW, SPECIAL

        def text(bodies: pa.ChunkedArray, charsets: pa.ChunkedArray) -> pa.Array:
            try:
                return _text(bodies, charsets)
            except StoreError as error:  # DuckDB would pass on its text only
                self._failed.append(error)
                raise

        self._database.create_function(
            "rmqstore_text", text, ["blob", "varchar"], "varchar", type=ARROW, null_handling=SPECIAL
        )
        for macro in _MACROS:
            self._database.execute(macro)

    def _register(self, sql: str | None = None) -> bool:
        """Make views of the names that `sql` has in its text, or of all. Returns whether any is new.

        Each takes DuckDB half a millisecond. SQL that may list views gets all of them.
        """
        text = None if sql is None or _NEEDS_ALL_VIEWS.search(sql) else sql.lower()
        names = [name for name in self._unregistered if text is None or name.lower() in text]
        for name in names:
            self._database.register(name, _View(name, self._unregistered.pop(name), self))
        return bool(names)

    def _value(self, sql: str) -> Any:
        row = self._database.execute(sql).fetchone()
        return None if row is None else row[0]

    def types(self, view: str) -> list[tuple[str, str]]:
        """The columns of a view with their types as DuckDB names them. Raises SqlError, such as in a
        transaction that an error ended."""
        with self._saying_errors():
            self._register(view)
            rows = self._database.execute(f'DESCRIBE "{view}"').fetchall()
        return [(str(name), str(kind)) for name, kind, *_ in rows]

    def keywords(self) -> list[str]:
        """The words of SQL, in lower case."""
        return list(self._value("SELECT list(keyword_name) FROM duckdb_keywords()"))

    def __enter__(self) -> StoreDatabase:
        return self

    def __exit__(self, *exc: object) -> None:
        self._end_calls()
        self._worker.shutdown()
        self._database.close()

    def interrupt(self) -> None:
        """End the query that runs, from another thread: it raises SqlError."""
        self._database.interrupt()

    def _called(self, call: Callable[[], Any]) -> Any:
        """What a call of DuckDB returns. Ctrl-C ends it, and raises KeyboardInterrupt."""
        result = self._worker.submit(call)
        try:
            # A wait does not notice ctrl-C that came right before it began, but the next wait does.
            while wait([result], _LOOKS_UP).not_done:
                pass
            return result.result()
        except KeyboardInterrupt:
            self._end_calls()
            raise

    def _end_calls(self) -> None:
        """Interrupt until nothing runs or waits: a query may not have begun, or not be known yet."""
        idle = self._worker.submit(int)
        while wait([idle], _AGAIN).not_done:
            self.interrupt()

    def answers(self, sql: str, *, only_one: bool = False) -> Iterator[QueryResult]:
        """What the statements of `sql` give, one after the other; read each before the next.

        `only_one`: one statement may have rows. Raises SqlError for what DuckDB refuses, and the
        errors of the stores while rows are read.
        """
        several = SqlError(
            reason="several statements have rows, which do not fit one file",
            advice="Give one query at a time",
        )
        statements = self._statements(sql)
        if only_one and [one.type.name for one in statements].count("SELECT") > 1:
            raise several  # before the rows of the first are written
        with_rows = 0
        for statement in statements:
            answer = self._answer(statement.query, statement.type.name)
            with_rows += answer.rows is not None
            if only_one and with_rows > 1:
                raise several
            yield answer

    def _answer(self, query: str, kind: str) -> QueryResult:
        explain = _EXPLAIN.match(query) if kind == "EXPLAIN" else None
        self._failed.clear()
        with self._saying_errors():
            relation = self._called(lambda: self._bound(query))  # None without rows
            if explain is not None and relation is not None:
                plan = "\n".join(str(row[-1]) for row in relation.fetchall())
                return QueryResult(None, plan, None if explain[1] else self.explained(query))
            if relation is None or (kind != "SELECT" and relation.columns in _COUNTS):
                return QueryResult(None)
            # The name that releases of DuckDB before 2.0 have for it.
            reader = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
            rows = self._called(lambda: reader(_BATCH_ROWS))
        names = _distinct(rows.schema.names)
        fields = [field.with_name(name) for field, name in zip(rows.schema, names, strict=True)]
        schema = pa.schema(fields)
        return QueryResult(pa.RecordBatchReader.from_batches(schema, self._batches(rows, schema)))

    def _bound(self, query: str) -> Any:
        """The statement as DuckDB's relation, with the views that it names."""
        self._register(query)
        try:
            return self._database.sql(query)
        except self._error as error:
            # The name of a view may be put together by the statement; and DuckDB proposes names.
            if type(error).__name__ != "CatalogException" or not self._register():
                raise
            return self._database.sql(query)

    def _batches(self, rows: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with self._saying_errors(pa.ArrowException, OSError):
            while (batch := self._called(lambda: next(rows, None))) is not None:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    def explained(self, sql: str) -> ExplainedQuery:
        """What the statements of `sql` read of the stores. Of messages nothing is read but what a plan
        needs: entries of queues, the index, heads of records. Tables are read.

        Queries run, without messages, and change nothing. What other statements make in memory is
        there for those behind them. An EXPLAIN before a query counts for nothing. Raises as `answers`,
        and SqlError for a statement that may write a file.
        """
        answer = ExplainedQuery()
        for statement in self._statements(sql):
            kind = statement.type.name
            if kind in _WRITES_FILES:
                raise SqlError(
                    reason=f"{kind} may write a file, and --explain changes nothing",
                    advice="Explain the query alone",
                )
            if kind in ("EXPLAIN", "SELECT"):
                plan = self._explained_query(_EXPLAIN.sub("", statement.query, count=1))
            else:
                plan = self._explained_by_running(statement.query)
            answer.scans += plan.scans
            answer.missed += plan.missed
        return answer

    def _explained_query(self, query: str) -> ExplainedQuery:
        """What a statement reads, if it is a query. It may still write, in a WITH: that is refused."""
        kinds = [statement.type.name for statement in self._statements(query)]
        if kinds != ["SELECT"] or self._is_in_transaction():  # of the caller, which may write
            return ExplainedQuery(missed=self._count_of_scans(query))
        self._register()  # the end of a transaction would undo those of the query
        self._called(lambda: self._database.execute("BEGIN TRANSACTION READ ONLY"))
        try:
            return self._explained_by_running(query)
        finally:
            self._called(lambda: self._database.execute("ROLLBACK"))

    def _is_in_transaction(self) -> bool:
        """Whether a statement began a transaction. A BEGIN inside of one would end it."""
        number = "SELECT txid_current()"
        with self._saying_errors():  # such as of a transaction that an error ended
            numbers = [self._database.execute(number).fetchall() for _ in range(2)]
        return numbers[0] == numbers[1]

    def _explained_by_running(self, query: str) -> ExplainedQuery:
        expected = self._count_of_scans(query)
        self._explained = plan = ExplainedQuery()
        try:
            for answer in self.answers(query):
                for _ in answer.rows or ():
                    pass
        finally:
            self._explained = None
        plan.missed = max(0, expected - len(plan.scans))
        return plan

    def _statements(self, sql: str) -> list[Any]:
        self._failed.clear()
        if not is_utf8(sql):
            raise SqlError(
                reason="the query is not UTF-8", advice="Check the encoding of the terminal"
            )
        with self._saying_errors():
            return list(self._database.extract_statements(sql))

    def _count_of_scans(self, query: str) -> int:
        try:
            rows = self._bound(f"EXPLAIN (FORMAT JSON) {query}").fetchall()
        except self._error:
            return 0  # no query, or one that fails for itself, too
        return sum(map(_scans_in, json.loads(rows[0][-1])))

    @contextmanager
    def _saying_errors(self, *others: type[Exception]) -> Iterator[None]:
        """Raise the error of a store that ended the query, or DuckDB's own as SqlError."""
        try:
            yield
        except (self._error, *others) as error:
            own = SqlError(reason=_first_words(str(error)), advice=_advice(str(error)))
            raise (self._failed[0] if self._failed else own) from None

    def scanned(
        self, name: str, dataset: LazyDataset, columns: Sequence[str], wanted: Any
    ) -> Batches:
        """The rows of a view for a scan of DuckDB, which gets errors as texts; they are kept."""
        messages = dataset if isinstance(dataset, MessageDataset) else None
        try:
            if self._explained is not None:
                parts = None if messages is None else messages.plan(wanted).stores
                text = None if wanted is None else " ".join(str(wanted).split())
                self._explained.scans.append(ViewScan(name, tuple(columns), text, parts))
                if parts is not None:
                    return self._noted(iter(()))
            if messages is not None and self._encodes(messages):
                return self._noted(messages.dictionary_batches(columns, wanted))
            return self._noted(dataset._batches(columns, wanted))
        except StoreError as error:
            self._failed.append(error)
            raise

    def schema_of(self, dataset: LazyDataset, schema: pa.Schema) -> pa.Schema:
        """The columns of a dataset as DuckDB gets them."""
        if not (isinstance(dataset, MessageDataset) and self._encodes(dataset)):
            return schema
        fields = [one.with_type(DICTIONARY) if one.name in ENCODED else one for one in schema]
        return pa.schema(fields)

    def _encodes(self, dataset: MessageDataset) -> bool:
        return self._takes_dictionaries and dataset.has_dictionaries

    def _noted(self, batches: Iterator[pa.RecordBatch]) -> Batches:
        try:
            for batch in batches:
                self.rows_read += batch.num_rows
                yield batch
        except StoreError as error:
            self._failed.append(error)
            raise


class _View(LazyDataset):
    """A dataset as DuckDB sees it."""

    def __init__(self, name: str, dataset: LazyDataset, database: StoreDatabase) -> None:
        columns = database.schema_of(dataset, dataset.schema)
        super().__init__(columns, database.schema_of(dataset, dataset._readable))
        self._name, self._dataset, self._database = name, dataset, database

    def _wanted(self, wanted: Any) -> Any:
        return self._dataset._wanted(wanted)

    def _counted_by(self) -> pa.Field:
        return self._dataset._counted_by()

    def _batches(self, columns: Sequence[str], wanted: Any) -> Batches:
        return self._database.scanned(self._name, self._dataset, columns, wanted)


def _text(bodies: pa.ChunkedArray, charsets: pa.ChunkedArray) -> pa.Array:
    """Bodies as text, each of a charset; NULL where they are not of it."""
    texts = pa.nulls(len(bodies), pa.string())
    column, names = _one_array(bodies), _one_array(charsets)
    for charset in names.unique().to_pylist():
        if charset is not None:
            mine = pc.equal(names, charset).fill_null(False)
            texts = pc.if_else(mine, text_in_charset(column, charset), texts)
    return texts


def _one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _scans_in(plan: Mapping[str, Any]) -> int:
    """The reads of views in a node of a plan and below it."""
    own = "ARROW_SCAN" in str(plan.get("name", ""))
    return own + sum(map(_scans_in, plan.get("children", ())))


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, a repeated one with a number behind it: an object of JSON has no name twice."""
    names_so_far: list[str] = []
    for name in names:
        number, own = 1, name
        while own in names_so_far or (own != name and own in names):
            number += 1
            own = f"{name}_{number}"
        names_so_far.append(own)
    return names_so_far


def _quoted(text: str) -> str:
    return text.replace("'", "''")


_HINT = re.compile(r"^(Did you mean .*|Candidate bindings: .*|Hint: .*)$", re.MULTILINE)


def _first_words(text: str) -> str:
    """What DuckDB says is wrong, without the query, and with the place in it."""
    words = text.split("\n\n")[0].split("\n")[0].rstrip(".!")
    line = re.search(r"^(LINE \d+: )(.*)\n( *)\^", text, re.MULTILINE)
    if line is None:
        return words
    at = len(line[3]) - len(line[1])
    return f"{words}, near '{line[2][max(0, at) :][:30]}'"


def _advice(text: str) -> str:
    hint = _HINT.search(text)
    if "disabled by configuration" in text:
        return "--files lets a query read and write other files"
    if re.search(r"\bTimeZone\b", text):
        return "--zone is the time zone of days and hours in a query"
    column = re.search(r'Referenced column "(\w+)"', text)
    if column is not None and column[1] in _RAW_COLUMNS and column[1] not in DEFAULT_NAMES:
        return f"{column[1]} is in the view {RAW_MESSAGES}"
    return "Views: messages, and the tables of rmqstore table" if hint is None else hint[1]
