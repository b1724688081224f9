"""SQL about stores: rows as the broker's classes say they are, and what a query reaches and reads."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from importlib import util
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rmq_store import MessageStore, StoreError
from rmq_store.errors import SqlError
from rmq_store.index.index_file_reader import IndexFile
from rmq_store.sql.database import StoreDatabase
from rmq_store.tables import TABLES_OF_A_STORE, Table
from tests.support.damage import flip_body, write_in_log
from tests.support.golden import (
    STORES,
    Golden,
    GoldenStore,
    bodies_of,
    messages_in,
    unpack,
    user_topic,
)
from tests.support.running.campaigns import few
from tests.support.running.commands import COMMAND, call, complaint, objects, run

NAME = "clean-5.5.0"


@pytest.fixture
def path(clean: GoldenStore) -> str:
    return clean.path


@pytest.fixture
def database(clean: GoldenStore) -> Iterator[StoreDatabase]:
    with clean.open() as store, StoreDatabase(store.messages(), [store]) as database:
        yield database


def asked(store: MessageStore, sql: str, **how: Any) -> list[dict[str, Any]]:
    with StoreDatabase(store.messages(**how), [store]) as database:
        return [
            row
            for answer in database.answers(sql)
            for batch in answer.rows or ()
            for row in batch.to_pylist()
        ]


@pytest.mark.parametrize("name", few("sums", STORES, "clean-5.5.0", "lmq-5.3.3", "expired-5.5.0"))
def test_sums_by_topic_are_those_of_the_broker_in_every_store(untouched: Golden, name: str) -> None:
    store = untouched(name)
    with store.open() as opened:
        first = {queue: opened.min_offset(*queue) for queue in opened.queues()}
        query = "SELECT topic, count(*) n, sum(storeSize)::BIGINT b FROM messages GROUP BY ALL"
        found = asked(opened, query, unwrap_batches=False)
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for queue, records in store.by_queue.items():
        for record in records:
            light = queue.topic.startswith("%LMQ%")
            if not light and user_topic(record) and record["queueOffset"] >= first[queue]:
                counts[queue.topic] += 1
                sizes[queue.topic] += record["storeSize"]
    assert {row["topic"]: row["n"] for row in found} == counts
    assert {row["topic"]: row["b"] for row in found} == sizes


def test_views_are_there_whatever_names_or_lists_them(clean: GoldenStore) -> None:
    """A view is made when a statement has its name; no statement may notice that."""
    every = sorted(["messages", "rawMessages", *TABLES_OF_A_STORE])
    with clean.open() as store:

        def rows(*statements: str) -> list[dict[str, Any]]:
            return asked(store, "; ".join(statements))

        for listing in ("SHOW TABLES", "SELECT table_name AS name FROM information_schema.tables"):
            assert sorted(row["name"] for row in rows(listing)) == every
        (count,) = rows("SELECT count(*) n FROM TOPICS")
        assert count["n"] == len(TABLES_OF_A_STORE["topics"].of(store))
        put_together = "SELECT count(*) n FROM query_table('top' || 'ics')"
        assert rows(put_together) == [count]
        undone = ("BEGIN", put_together, "ROLLBACK", "SELECT count(*) n FROM topics")
        assert rows(*undone) == [count, count]
        with pytest.raises(SqlError, match='Did you mean "topics"'):
            rows("FROM topic")


@pytest.mark.parametrize("table", list(TABLES_OF_A_STORE))
def test_a_view_has_the_rows_of_its_table(golden: Golden, table: str) -> None:
    with golden("clean-4.9.7").open() as store:
        expected = TABLES_OF_A_STORE[table].of(store)
        with StoreDatabase(store.messages(), [store]) as database:
            (answer,) = database.answers(f"FROM {table}")
            assert answer.rows is not None
            found = answer.rows.read_all()
    assert found.column_names == expected.column_names
    same = [name for name in expected.column_names if name != "configAgeMs"]  # it grows
    rows = found.cast(expected.schema).select(same).to_pylist()
    assert sorted(map(repr, rows)) == sorted(map(repr, expected.select(same).to_pylist()))


def test_only_what_a_query_names_is_made(
    clean: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def pieces(table: Table, store: MessageStore, **how: Any) -> Iterator[pa.Table]:
        made.append(table.name)
        yield from real(table, store, **how)

    real = Table.pieces
    monkeypatch.setattr(Table, "pieces", pieces)
    with clean.open() as store:
        asked(store, "SELECT 1")
        assert made == []
        asked(store, "SELECT count(*) FROM topics")
    assert made == ["topics"]


def test_the_items_of_an_index_are_read_for_the_columns_about_chains_alone(
    clean: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full index file has 400 MB of them."""
    with clean.open() as store:
        monkeypatch.delattr(IndexFile, "key_hashes")
        rows = asked(store, "SELECT path, items, load FROM index WHERE items > 0")
        assert len(rows) == len(list(Path(store.path, "index").iterdir()))
        with pytest.raises(SqlError, match="key_hashes"):
            asked(store, "SELECT longestChain FROM index")


def test_a_body_that_does_not_open_is_there_as_stored(copy: GoldenStore) -> None:
    record = next(r for r in copy.truth if r["sysFlag"] & 1 and not r["sysFlag"] & 0x80)
    place = record["commitLogOffset"]
    body = b"x" * len(bodies_of(record)[1])
    write_in_log(copy, place + 88, body)
    write_in_log(copy, place + 8, struct.pack(">i", zlib.crc32(body) & 0x7FFFFFFF))
    where = f"WHERE commitLogOffset = {place}"
    assert "view rawMessages" in call("sql", copy.path, f"SELECT body FROM messages {where}").stderr
    refused = call("sql", copy.path, f"SELECT rawBody FROM messages {where}").stderr
    assert "rawBody is in the view rawMessages" in refused
    rows = objects("sql", copy.path, f"SELECT text(rawBody) AS stored FROM rawMessages {where}")
    assert rows == [{"stored": body.decode()}]


def test_days_are_those_of_a_time_zone(clean: GoldenStore) -> None:
    """The golden store is of a morning in UTC, which is the evening before in Honolulu."""
    store, zone = clean, "Pacific/Honolulu"
    stamps = [row["storeTimestamp"] / 1000 for row in store.truth if user_topic(row)]

    def days(hours: int) -> dict[str, int]:
        of_zone = timezone(timedelta(hours=hours))
        return Counter(str(datetime.fromtimestamp(one, of_zone).date()) for one in stamps)

    query = "SELECT storeTimestamp::date::varchar d, count(*) n FROM messages GROUP BY ALL"
    for words, wanted in (((), days(0)), (("--zone", zone), days(-10))):
        found = objects("sql", store.path, query, "--raw", *words)
        assert {row["d"]: row["n"] for row in found} == wanted
    assert days(0) != days(-10)
    stamp = "SELECT storeTimestamp AS t FROM messages ORDER BY commitLogOffset LIMIT 1"
    assert objects("sql", store.path, stamp, "--zone", zone) == objects("sql", store.path, stamp)
    assert "Nowhere/Else" in complaint("sql", store.path, query, "--zone", "Nowhere/Else", expect=2)
    assert "--zone" in complaint("sql", store.path, f"SET TimeZone = '{zone}'", expect=2)


def test_bodies_are_text_and_json(tmp_path: Path) -> None:
    with_mark = '\ufeff{"a": {"b": 8}}'
    bodies = ["你好".encode("gbk"), b'{"a": {"b": 7}}', b"\xff\xfe", b"", with_mark.encode()]
    with MessageStore.create(tmp_path / "store", {"mappedFileSizeCommitLog": 1 << 20}) as writer:
        for body in bodies:
            writer.append({"topic": "t", "queueId": 0, "body": body})
    with MessageStore.open(tmp_path / "store") as store:
        values = "text(body) t, text(body, 'GBK') g, json_of(body)->>'$.a.b' j"
        found = asked(store, f"SELECT {values} FROM messages ORDER BY queueOffset")
        with pytest.raises(StoreError, match="no charset 'gbkk'"):
            asked(store, "SELECT text(body, 'gbkk') FROM messages")
    assert [row["t"] for row in found] == [None, '{"a": {"b": 7}}', None, "", with_mark]
    assert [row["g"] for row in found][:4] == ["你好", '{"a": {"b": 7}}', None, ""]
    assert [row["j"] for row in found] == [None, "7", None, None, "8"]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/*')",
        "COPY (SELECT 1) TO '{}/out.csv'",
        "ATTACH '{}/x.db'",
        "EXPORT DATABASE '{}/x'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "RESET enable_external_access",
    ],
)
def test_a_query_reaches_nothing_outside(
    clean: GoldenStore, tmp_path: Path, statement: str
) -> None:
    with clean.open() as store, pytest.raises(SqlError):
        asked(store, statement.replace("{}", str(tmp_path)))
    assert not list(tmp_path.iterdir())


def test_files_are_reached_if_they_are_asked_for(path: str, tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    run("sql", path, f"COPY (SELECT 7 AS n) TO '{target}'", "--files")
    assert target.read_text() == "n\n7\n"


def test_damage_ends_a_query_with_the_error_of_the_store(copy: GoldenStore) -> None:
    record = flip_body(copy, "orders")
    sql = "SELECT count(body) n, count(DISTINCT topic) FROM messages"
    done = call("sql", copy.path, sql)
    assert (done.returncode, done.stdout) == (2, "")
    assert "[RMQSTORE_CORRUPT_RECORD]" in done.stderr
    assert f"offset {record['commitLogOffset']}" in done.stderr
    assert "--skip-damaged leaves it out" in done.stderr
    said = run("sql", copy.path, sql, "--skip-damaged", "--raw", "--json", expect=1)
    expected = sum(user_topic(r) for r in copy.truth) - 1
    assert json.loads(said)["n"] == expected
    unread = call("sql", copy.path, "SELECT count(body) FROM messages WHERE topic = 'payments'")
    assert unread.returncode == 0


def test_forms_of_the_output(clean: GoldenStore, tmp_path: Path) -> None:
    sql = "SELECT topic, queueOffset, storeTimestamp, tags, body FROM messages WHERE queueId = 1"
    text = run("sql", clean.path, sql).splitlines()
    as_json = [json.loads(line) for line in run("sql", clean.path, sql, "--json").splitlines()]
    rows = list(csv.DictReader(io.StringIO(run("sql", clean.path, sql, "--csv"))))
    target = tmp_path / "rows.parquet"
    assert "rows.parquet: " in call("sql", clean.path, sql, "--parquet", str(target)).stderr
    table = pq.read_table(target)
    expected = {
        (r["topic"], r["queueOffset"])
        for r in clean.truth
        if user_topic(r) and r["queueId"] == 1 and messages_in(r) == 1
    }
    assert text[0].split("\t") == ["topic", "queueOffset", "storeTimestamp", "tags", "body"]
    assert {(line.split("\t")[0], int(line.split("\t")[1])) for line in text[1:]} == expected
    assert {(row["topic"], row["queueOffset"]) for row in as_json} == expected
    assert {(row["topic"], int(row["queueOffset"])) for row in rows} == expected
    columns = (table.column(name).to_pylist() for name in ("topic", "queueOffset"))
    assert set(zip(*columns, strict=True)) == expected
    assert [row["storeTimestamp"] for row in rows] == [row["storeTimestamp"] for row in as_json]
    assert "the file exists" in call("sql", clean.path, sql, "--parquet", str(target)).stderr
    inside = Path(clean.path) / "rows.parquet"
    refused = call("sql", clean.path, sql, "--parquet", str(inside))
    assert (refused.returncode, inside.exists()) == (2, False)
    assert "nothing is written into a store" in refused.stderr


def test_values_of_any_type_are_printed(path: str) -> None:
    sql = (
        "SELECT 170141183460469231731687303715884105727::HUGEINT h, 1.50::DECIMAL(9,2) d, "
        "[1, NULL] l, {'a': 'x', 'b': '\\xFF'::BLOB} s, MAP {'k': 2} m, DATE '2026-01-02' y, "
        "TIMESTAMP '2026-01-02 03:04:05.000006' t, INTERVAL 1 DAY + INTERVAL 61 SECOND i, "
        "'nan'::DOUBLE n, 0.1::FLOAT f, NULL z, '\\xFF'::BLOB b, true o, chr(27) e"
    )
    (line,) = run("sql", path, sql, "--json").splitlines()
    assert "\\u001b" in line
    found = json.loads(line)
    assert found == {
        "h": 2**127 - 1,
        "d": 1.5,
        "l": [1, None],
        "s": {"a": "x", "b": "base64:/w=="},
        "m": {"k": 2},
        "y": "2026-01-02",
        "t": "2026-01-02T03:04:05.000006",
        "i": "1 days 00:01:01",
        "n": "nan",
        "f": pytest.approx(0.1),
        "z": None,
        "b": None,
        "bBase64": "/w==",
        "o": True,
        "e": "\x1b",
    }
    names, values = (line.split("\t") for line in run("sql", path, sql).splitlines())
    cells = dict(zip(names, values, strict=True))
    assert cells["h"] == str(2**127 - 1)
    assert cells["l"] == "[1, null]"
    assert cells["s"] == '{"a": "x", "b": "base64:/w=="}'
    assert (cells["b"], cells["z"], cells["f"], cells["e"]) == ("base64:/w==", "", "0.1", "\\u001b")


def test_names_of_columns_are_distinct_and_quoted(path: str) -> None:
    sql = 'SELECT 1 AS a, 2 AS a, 3 AS "a_2", 4 AS "q""\\"'
    (line,) = run("sql", path, sql, "--json").splitlines()
    assert json.loads(line) == {"a": 1, "a_3": 2, "a_2": 3, 'q"\\': 4}
    assert run("sql", path, sql).splitlines()[0].split("\t") == ["a", "a_3", "a_2", 'q"\\']


def test_explain_shows_the_ranges_that_are_read(clean: GoldenStore) -> None:
    sql = "SELECT body FROM messages WHERE topic = 'payments' AND queueId = 1"
    (row,) = map(json.loads, run("sql", clean.path, sql, "--explain", "--json").splitlines())
    with clean.open() as opened:
        limits = opened.min_offset("payments", 1), opened.max_offset("payments", 1)
    assert (row["topic"], row["queueId"]) == ("payments", 1)
    assert (row["startOffset"], row["stopOffset"]) == limits
    assert row["columns"] == ["topic", "queueId", "body"]
    drawn = run("sql", clean.path, f"EXPLAIN {sql}")
    assert "ARROW_SCAN" in drawn
    assert drawn.splitlines()[-1].split("\t")[3:7] == ["payments", "1", *map(str, limits)]
    keyed = run("sql", clean.path, "FROM messages WHERE keys = 'ORDER_1'", "--explain")
    assert keyed.splitlines()[-1].split("\t")[-1] == "ORDER_1"
    joined = run("sql", clean.path, "FROM messages JOIN queues USING (topic)", "--explain")
    assert "of messages" in joined
    assert "of queues" in joined


def test_an_explanation_reads_no_message(copy: GoldenStore) -> None:
    flip_body(copy, "orders")
    run("sql", copy.path, "SELECT body FROM messages", "--explain")
    analyzed = call("sql", copy.path, "EXPLAIN ANALYZE SELECT body FROM messages")
    assert analyzed.returncode == 2


def test_several_stores_differ_by_broker_name(tmp_path: Path) -> None:
    counts = {}
    for name in ("clean-5.3.3", "clean-4.9.7"):
        store = unpack(name, tmp_path / name[-1])
        folder = tmp_path / "brokers" / name
        folder.mkdir(parents=True)
        Path(store.path).rename(folder / "store")
        counts[name] = sum(user_topic(r) for r in store.truth)
    sql = "SELECT brokerName, count(*) n FROM messages GROUP BY ALL"
    pattern = str(tmp_path / "brokers" / "*" / "store")
    ways = [(pattern,), tuple(f"{tmp_path}/brokers/{name}/store" for name in counts)]
    for first, *others in ways:
        more = [word for other in others for word in ("--store", other)]
        lines = run("sql", first, sql, *more, "--raw", "--json").splitlines()
        assert {row["brokerName"]: row["n"] for row in map(json.loads, lines)} == counts
    tables = run("sql", pattern, "SELECT DISTINCT brokerName FROM topics ORDER BY 1").split()
    assert tables[1:] == sorted(counts)
    assert call("sql", pattern, sql, "--broker-name", "x").returncode == 2
    assert "matches no folder" in call("sql", str(tmp_path / "nobody*"), sql).stderr


def test_a_misspelt_topic_is_named(path: str) -> None:
    query = "SELECT topic FROM messages WHERE topic = 'ordrs'"
    said = call("sql", path, query)
    assert (said.returncode, said.stdout) == (0, "topic\n")
    assert said.stderr.count("there is no topic 'ordrs'. Did you mean 'orders'?") == 1


def test_options_choose_the_messages(clean: GoldenStore) -> None:
    count = "SELECT count(*) FROM messages"

    def number(*words: str) -> int:
        return int(run("sql", clean.path, count, *words).split()[-1])

    users = [r for r in clean.truth if user_topic(r)]
    stamps = sorted(r["storeTimestamp"] for r in users)
    assert number("--raw") == len(users)
    assert number() == sum(map(messages_in, users))
    later = number("--raw", "--since", str(stamps[50]))
    assert later == sum(stamp >= stamps[50] for stamp in stamps)
    assert number("--raw", "--system") > len(users)
    key = next(r["keys"].split(" ")[1] for r in users if " " in (r["keys"] or ""))
    keyed = sum(key in (r["keys"] or "").split(" ") for r in users)
    assert number("--raw", "--key", key) == keyed > 1


def test_without_duckdb_the_error_says_what_to_install(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = util.find_spec
    monkeypatch.setattr(
        "rmq_store.errors.find_spec", lambda name: None if name == "duckdb" else real(name)
    )
    said = complaint("sql", path, "SELECT 1", expect=2)
    assert said == (
        "rmqstore: [RMQSTORE_SQL_UNAVAILABLE] SQL needs DuckDB. pip install 'rmqstore[sql]'\n"
    )


def test_wrong_words_are_refused(path: str) -> None:
    assert "Did you mean" in call("sql", path, "SELECT * FROM mesages").stderr
    assert "near 'selct 1'" in call("sql", path, "selct 1").stderr
    for words in (
        ("--json", "--csv"),
        ("--csv", "--parquet", "x"),
        ("--explain", "--parquet", "x"),
    ):
        assert call("sql", path, "SELECT 1", *words).returncode == 2
    assert "one query" in call("sql", path, "SELECT 1; SELECT 2", "--csv").stderr


def test_statements_come_from_stdin(path: str) -> None:
    done = subprocess.run(
        [*COMMAND, "sql", path],
        input="CREATE TABLE t AS SELECT 5 AS a; SELECT a FROM t; SELECT count(*) AS n FROM topics",
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.split()
    assert lines[:3] == ["a", "5", "n"]


ENDLESS = "SELECT count(*) FROM range(10_000_000) a, range(10_000_000) b WHERE hash(a.range + b.range) = 1"


def test_ctrl_c_ends_a_query(path: str) -> None:
    """It comes when the query is under way, which its first rows show."""
    process = subprocess.Popen(
        [*COMMAND, "sql", path, f"SELECT 'begun' AS a; {ENDLESS}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"a\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip() == b""


def test_ctrl_c_ends_a_query_that_nothing_waits_for_yet(
    clean: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes right after the query was handed to its thread, which leaving the database ends."""
    submit, calls = ThreadPoolExecutor.submit, list[Future[Any]]()

    def met(self: ThreadPoolExecutor, call: Callable[[], Any]) -> Future[Any]:
        calls.append(submit(self, call))
        if len(calls) == 2:  # the first one binds the statement
            raise KeyboardInterrupt
        return calls[-1]

    monkeypatch.setattr(ThreadPoolExecutor, "submit", met)
    with (
        clean.open() as store,
        pytest.raises(KeyboardInterrupt),
        StoreDatabase(store.messages(), [store]) as database,
    ):
        list(database.answers(ENDLESS))
    assert "INTERRUPT" in str(calls[1].exception())


SILENCE = 5  # seconds without an answer, after which a key is typed again


class Terminal:
    """A prompt in a terminal of 80 columns."""

    def __init__(self, *words: str, home: Path, **environment: str) -> None:
        process, self._terminal = pty.fork()
        if process == 0:
            os.environ |= {"COLUMNS": "80", "TERM": "xterm", "XDG_STATE_HOME": str(home)}
            os.environ |= environment
            os.execv(sys.executable, [*COMMAND, *words])
        self._process = process
        self.seen = ""

    def until(self, *texts: str) -> str:
        """What is shown up to some texts, one behind the other."""
        start = len(self.seen)
        while not re.search(".*".join(map(re.escape, texts)), self.seen[start:], re.DOTALL):
            self._read()
        return self.seen[start:]

    def _read(self) -> None:
        self.seen += os.read(self._terminal, 4096).decode("utf-8", "replace")

    def interrupt(self, text: str) -> None:
        """Type ctrl-C until a text is shown.

        One that comes between the prompt and Python's wait for input is noticed with the next key. A bar of
        progress is no sign that it was.
        """
        start = len(self.seen)
        while text not in self.seen[start:]:
            self.type("\x03")
            until = time.monotonic() + SILENCE
            while text not in self.seen[start:] and (left := until - time.monotonic()) > 0:
                if select.select([self._terminal], [], [], left)[0]:
                    self._read()

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def ended(self) -> int:
        """The exit code."""
        try:
            while os.read(self._terminal, 4096):
                pass
        except OSError:  # of the closed end
            pass
        _, status = os.waitpid(self._process, 0)
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(status)


def test_the_prompt_runs_statements_and_keeps_its_history(
    clean: GoldenStore, tmp_path: Path
) -> None:
    with clean.open() as store:
        topics = len(store.topics())
    terminal = Terminal("sql", clean.path, home=tmp_path)
    terminal.until("rmqstore> ")
    terminal.type("SELECT count(*) AS n\n")
    terminal.until("... ")
    terminal.type("FROM topics WHERE queues > 0;\n")
    assert str(topics) in terminal.until("rmqstore> ")
    terminal.type("SELECT nothing;\n")
    assert "RMQSTORE_SQL" in terminal.until("rmqstore> ")
    terminal.type("SELECT half\n")
    terminal.until("... ")
    terminal.interrupt("rmqstore> ")
    terminal.type(f"SELECT 'begun' || 1; {ENDLESS};\n")
    terminal.until("begun1")
    terminal.interrupt("rmqstore> ")
    terminal.type("SELECT 'still ' || 'here';\n")
    terminal.until("still here", "rmqstore> ")  # elsewhere than at the prompt, ctrl-D is lost
    terminal.type("\x04")
    assert terminal.ended() == 0
    history = tmp_path / "rmqstore" / "sql_history"
    assert "FROM topics WHERE queues > 0;" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_the_prompt_shows_views_columns_and_rows(clean: GoldenStore, tmp_path: Path) -> None:
    with clean.open() as store:
        topics = store.table("topics").column("topic").to_pylist()
    terminal = Terminal("sql", clean.path, home=tmp_path, TZ="Asia/Tokyo")
    assert "Times are in Asia/Tokyo" in terminal.until("rmqstore> ")
    terminal.type("help\n")
    terminal.until(".schema VIEW", "rmqstore> ")
    terminal.type(".tables\n")
    terminal.until("messages ", "rawMessages ", "queues ", "pop ", "rmqstore> ")
    terminal.type(".schema grups\n")
    assert "Did you mean 'groups'?" in terminal.until("rmqstore> ")
    terminal.type(".schema GROUPS;\n")
    terminal.until("lag", "BIGINT", "rmqstore> ")
    for line in ("BEGIN;", "BEGIN;", ".schema queues"):  # the second ends the transaction
        terminal.type(f"{line}\n")
        shown = terminal.until(line, "rmqstore> ")
    assert "aborted" in shown
    terminal.type("ROLLBACK;\n")
    terminal.until("ROLLBACK;", " s", "rmqstore> ")
    terminal.type(".tabels\n")
    assert "Did you mean '.tables'?" in terminal.until("rmqstore> ")
    terminal.type("SELECT topic, queues AS q FROM topics WHERE messages >= 0\\G\n")
    shown = terminal.until(f"{len(topics)} rows, ", " s", "rmqstore> ")
    assert f"topic  {topics[0]}\r\nq      " in shown
    terminal.type("SELECT min(storeTimestamp) AS first FROM messages;\n")
    assert re.search(r"T18:23:4\d\.\d{3}\+09:00", terminal.until("1 row, ", "rmqstore> "))
    terminal.type("SELECT notAck\t FROM groups;\n")
    terminal.until("notAcknowledged", "FROM groups", "rows, ", "rmqstore> ")
    terminal.type(".exit\n")
    assert terminal.ended() == 0


def test_a_table_fits_a_terminal_of_80_columns(path: str, tmp_path: Path) -> None:
    terminal = Terminal(
        "sql",
        path,
        "SELECT topic, queueId, storeTimestamp, keys, body FROM messages LIMIT 30; SELECT 'e'||'nd'",
        home=tmp_path,
    )
    shown = terminal.until("end")
    assert terminal.ended() == 0
    lines = shown.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
    assert lines[0].split() == ["topic", "queueId", "storeTimestamp", "keys", "body"]
    assert len(lines) > 30
    assert max(map(len, lines)) == 80


@pytest.mark.parametrize("kind", ["COPY", "EXPORT", "ATTACH"])
def test_the_explain_option_writes_no_file(path: str, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "kept"
    statement = {
        "COPY": f"COPY (FROM messages) TO '{target}' (FORMAT csv)",
        "EXPORT": f"CREATE TABLE own AS FROM topics; EXPORT DATABASE '{target}'",
        "ATTACH": f"ATTACH '{target}'",
    }[kind]
    if kind == "COPY":
        target.write_text("mine")
    said = complaint("sql", path, statement, "--explain", "--files", expect=2)
    assert f"{kind} may write a file, and --explain changes nothing" in said
    assert target.read_text() == "mine" if kind == "COPY" else not target.exists()


@pytest.mark.parametrize(
    "changing",
    [
        "DELETE FROM own",
        "INSERT INTO own SELECT queueId FROM messages",
        "CREATE TABLE other AS FROM messages",
        "COPY (FROM messages) TO '{file}'",
    ],
)
def test_an_explain_before_a_statement_changes_nothing(
    clean: GoldenStore, tmp_path: Path, changing: str
) -> None:
    file = tmp_path / "none.csv"
    with clean.open() as store, StoreDatabase(store.messages(), [store], files=True) as database:
        made = list(database.answers("CREATE TABLE own AS SELECT 1 AS a"))
        (answer,) = database.answers(f"EXPLAIN {changing.format(file=file)}")
        assert made[0].rows is None
        assert answer.plan
        assert answer.explained is not None
        assert answer.explained.scans == []
        assert answer.explained.missed == ("messages" in changing)
        (rows,) = database.answers("FROM own")
        assert rows.rows is not None
        assert rows.rows.read_all().to_pylist() == [{"a": 1}]
        with pytest.raises(SqlError, match="other"):
            list(database.answers("FROM other"))
    assert not file.exists()


def test_an_explain_leaves_a_transaction_as_it_is(database: StoreDatabase) -> None:
    for statement in ("BEGIN", "CREATE TABLE own AS SELECT 1 AS a"):
        list(database.answers(statement))
    (answer,) = database.answers("EXPLAIN SELECT count(*) FROM messages")
    assert answer.explained is not None
    assert (answer.explained.scans, answer.explained.missed) == ([], 1)
    list(database.answers("COMMIT"))
    (rows,) = database.answers("FROM own")
    assert rows.rows is not None
    assert rows.rows.read_all().num_rows == 1
    (answer,) = database.answers("EXPLAIN SELECT count(*) FROM messages")
    assert answer.explained is not None
    assert len(answer.explained.scans) == 1


def test_what_an_aborted_transaction_refuses_is_an_error(database: StoreDatabase) -> None:
    list(database.answers("BEGIN"))
    with pytest.raises(SqlError, match="within a transaction"):
        list(database.answers("BEGIN"))
    with pytest.raises(SqlError, match="aborted"):
        database.explained("FROM messages")


def test_an_explain_is_one_with_comments_and_brackets_too(database: StoreDatabase) -> None:
    for before in ("/* why */ EXPLAIN ", "-- why\nEXPLAIN\n", "EXPLAIN (FORMAT json) "):
        for query in ("SELECT count(*) FROM messages", "(SELECT count(*) FROM messages)"):
            (answer,) = database.answers(before + query)
            assert answer.explained is not None, before
            assert [scan.view for scan in answer.explained.scans] == ["messages"], before
    (answer,) = database.answers("SELECT topic FROM messages LIMIT 3")
    assert answer.rows is not None
    assert answer.rows.read_all().num_rows == 3


@pytest.mark.parametrize("form", [(), ("--csv",), ("--json",)])
def test_nothing_acts_on_the_terminal(path: str, tmp_path: Path, form: tuple[str, ...]) -> None:
    sql = "SELECT chr(27) || ']0;x' || chr(7) AS \"e\x1b[2J\", 'e'||'nd' AS b"
    terminal = Terminal("sql", path, sql, *form, home=tmp_path)
    shown = terminal.until("end")
    assert terminal.ended() == 0
    assert "\x07" not in shown
    assert "\x1b[2J" not in shown
    assert "\x1b]" not in shown


def test_rows_stream(database: StoreDatabase) -> None:
    (answer,) = database.answers("SELECT topic FROM messages")
    assert isinstance(answer.rows, pa.RecordBatchReader)
    assert answer.rows.read_next_batch().num_rows


@pytest.mark.parametrize("value", ["INTERVAL 1 day", "union_value(a := 1)"])
def test_a_type_that_parquet_lacks_is_an_error(path: str, tmp_path: Path, value: str) -> None:
    target = tmp_path / "rows.parquet"
    said = complaint("sql", path, f"SELECT {value} AS v", "--parquet", str(target), expect=2)
    assert "RMQSTORE_INVALID_ARGUMENT" in said
    assert "Parquet has no such column" in said
    assert list(tmp_path.iterdir()) == []


def test_several_queries_for_one_file_are_refused_before_one_is_written(
    path: str, tmp_path: Path
) -> None:
    target = tmp_path / "rows.parquet"
    said = complaint("sql", path, "SELECT 1; SELECT 2", "--parquet", str(target), expect=2)
    assert "several statements have rows" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["argument", "stdin"])
def test_a_query_that_is_not_utf8_is_an_error(path: str, how: str) -> None:
    sql = b"SELECT '\xff'"
    words: list[Any] = [*COMMAND, "sql", path]
    found = subprocess.run(
        [*words, sql] if how == "argument" else words, input=sql, capture_output=True, check=False
    )
    assert found.returncode == 2
    assert b"the query is not UTF-8" in found.stderr


@pytest.mark.parametrize("form", ["--json", "--csv", None])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("'290000-01-01'::TIMESTAMP", 9089348860800000000),  # us since 1970
        ("'infinity'::TIMESTAMPTZ", (1 << 63) - 1),
        ("'infinity'::DATE", (1 << 31) - 1),
        ("TIMESTAMP_NS '2020-01-01 00:00:00.123456789'", 1577836800123456789),
        ("['infinity'::DATE]", [(1 << 31) - 1]),
        ("['infinity'::DATE]::DATE[1]", [(1 << 31) - 1]),
        ("{'a': 'infinity'::DATE}", {"a": (1 << 31) - 1}),
        ("MAP {'a': 'infinity'::DATE}", {"a": (1 << 31) - 1}),
    ],
)
def test_a_time_that_python_lacks_is_a_number(
    path: str, form: str | None, value: str, expected: Any
) -> None:
    query = f"SELECT {value} AS v, 1.5::DOUBLE AS n"
    printed = run("sql", path, query, *([form] if form else []))
    if form == "--json":
        assert json.loads(printed) == {"v": expected, "n": 1.5}
    elif form == "--csv":
        (row,) = csv.DictReader(io.StringIO(printed))
        assert json.loads(row["v"]) == expected
    else:
        assert json.loads(printed.splitlines()[1].split("\t")[0]) == expected


def test_a_store_that_is_named_twice_is_read_once(path: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    query = "SELECT count(*) FROM messages"
    once = run("sql", path, query)
    others = [f"{path}/", f"{path}/../store", str(tmp_path / "link"), f"{path}*"]
    words = [word for other in others for word in ("--store", other)]
    assert run("sql", path, query, *words) == once
