"""What operators do to the files of a store, asked in many ways: every row, or a word of what is missing, by
the answer itself or by `verify`.

A file or a folder that is gone, cut, empty, full of zeros or exchanged with another one. What no other file
proves is left out: a log whose first file is gone looks as if it had expired.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from rmq_store import MessageStore
from rmq_store.errors import LOG
from rmq_store.reading import log_reader, slice_entries
from rmq_store.snapshot import opening
from rmq_store.verify import Severity, verify
from tests.support.damage import exchange
from tests.support.golden import CLEAN, KINDS, UNCLEAN, unpack, unpack_kind
from tests.support.running.campaigns import WORD
from tests.support.running.commands import call

CASES = 1_000
PART = 12  # cases where a campaign runs a part; each takes three seconds of a core
SEED = "20261127"
# Of a tree that only brokers with another configuration read.
NAMES = [name for name in (*CLEAN, *UNCLEAN, *KINDS) if not name.startswith("multipath")]
PARTS = ("commitlog", "consumequeue", "batchconsumequeue", "index", "config", "compaction")
WEIGHTS = (5, 8, 2, 1, 2, 1)
COLUMNS = ["topic", "queueId", "queueOffset"]
COUNTED = "select topic, queueId, count(*) as messages from messages group by all"
WIDTH = 20  # of a queue entry


class Answer(NamedTuple):
    """The rows of an answer, and what was said beside them."""

    rows: frozenset[str]
    code: int
    said: str


class Message(NamedTuple):
    """A message of a store, which the questions are about."""

    topic: str
    key: str
    time: str  # as an option has it


# --- injuries -------------------------------------------------------------------------------------


def zeros(file: Path, chance: random.Random, size: int | None = None) -> None:
    """Zeros over some entries or bytes; to the file's end without a size."""
    content = file.read_bytes()
    at = chance.randrange(len(content.rstrip(b"\0")) or 1) // WIDTH * WIDTH
    stop = len(content) if size is None else min(len(content), at + size)
    file.write_bytes(content[:at] + bytes(stop - at) + content[stop:])


def injure(store: Path, chance: random.Random) -> str:
    """Do one thing to a store; a phrase about it, empty if there was nothing to do it to."""
    part = chance.choices(PARTS, WEIGHTS)[0]
    files = [f for f in sorted((store / part).rglob("*")) if f.is_file() and f.stat().st_size]
    if part == "commitlog":
        files = files[1:]
    if not files:
        return ""
    file = chance.choice(files)
    others = [f for f in files if f != file]
    what = chance.choice(("gone", "folder", "cut", "empty", "zeros", "end", "exchanged"))
    if what == "folder" and part != "commitlog":
        folder = chance.choice([f for f in file.parents if store in f.parents])
        shutil.rmtree(folder)
        return f"{folder.relative_to(store)} gone"
    if what == "exchanged" and others:
        near = [f for f in others if f.parent == file.parent]
        other = chance.choice(near or others)
        exchange(file, other)
        return f"{file.relative_to(store)} and {other.relative_to(store)} exchanged"
    if what in ("gone", "folder"):
        file.unlink()
    elif what in ("cut", "empty"):
        size = file.stat().st_size
        os.truncate(file, 0 if what == "empty" else chance.randrange(size) // WIDTH * WIDTH)
    else:
        zeros(file, chance, chance.choice((20, 100, 4000)) if what == "zeros" else None)
    return f"{file.relative_to(store)} {what}"


# --- questions ------------------------------------------------------------------------------------


def places(rows: Sequence[dict[str, Any]]) -> frozenset[str]:
    return frozenset(" ".join(str(row[name]) for name in COLUMNS) for row in rows)


def command(*words: str, of: Callable[[str], Iterator[str]]) -> Answer:
    done = call(*words)
    rows = (row for line in done.stdout.splitlines() for row in of(line))
    return Answer(frozenset(rows), done.returncode, done.stderr)


def place(line: str) -> Iterator[str]:
    yield from places([json.loads(line)])


def counted(line: str) -> Iterator[str]:
    """The numbers of messages that are in a topic or a queue."""
    row = json.loads(line)
    yield from (f"{row['topic']} {row.get('queueId')} {n}" for n in range(row["messages"]))


def written(folder: Path, *words: str) -> Answer:
    """What a job writes; of what it says, the warnings."""
    done = call(*words, str(folder))
    found = []
    if any(folder.rglob("*.parquet")):
        rows = ds.dataset(folder, format="parquet", partitioning="hive")
        if rows.schema.names:  # of a job that was stopped, no file counts
            found = rows.to_table(COLUMNS).to_pylist()
    shutil.rmtree(folder, ignore_errors=True)
    said = [line for line in done.both.splitlines() if "warning: " in line]
    return Answer(places(found), done.returncode, "\n".join(said))


def library(store: Path, ask: Callable[[MessageStore], list[dict[str, Any]]]) -> Answer:
    """The rows of a question to the library, with what it logs."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    LOG.addHandler(handler)
    try:
        with MessageStore.open(store) as opened:
            return Answer(places(ask(opened)), 0, "\n".join(said))
    except Exception as error:
        return Answer(frozenset(), 2, str(error))
    finally:
        LOG.removeHandler(handler)


def dataset(condition: pc.Expression | None) -> Callable[[MessageStore], list[dict[str, Any]]]:
    return lambda store: store.messages().to_table(COLUMNS, condition).to_pylist()


def without_age(line: str) -> Iterator[str]:
    """A row without how long it waits: until the last message, which may be another one."""
    row = json.loads(line)
    yield json.dumps({name: row[name] for name in row if name not in ("openMs", "overdueMs")})


def fates(line: str) -> Iterator[str]:
    """What may have become of a transaction: one thing, or several where a row says that it is not known."""
    row = json.loads(line)
    every = ("open", "committed", "rolledBack", "givenUp", "ended")
    states = every if row["state"] in ("ended", "unknown") else (row["state"],)
    yield from (f"{row['transactionId']} {row['halfCommitLogOffset']} {state}" for state in states)


def asked(store: Path, about: Message) -> Iterator[tuple[str, Answer]]:
    path, of_topic = str(store), (str(store), "--topic", about.topic, "--json")
    yield "cat", command("cat", *of_topic, of=place)
    yield "cat --since", command("cat", *of_topic, "--since", about.time, of=place)
    yield "cat --until", command("cat", *of_topic, "--until", about.time, of=place)
    yield "tail", command("tail", *of_topic, "-n", "100000", of=place)
    yield "find --key", command("find", path, "--key", about.key, "--json", of=place)
    for name, condition in {
        "": "",
        " by key": f"where keys = '{about.key}'",
        " by time": f"where storeTimestamp >= '{about.time}'",
    }.items():
        query = f"select topic, queueId, queueOffset from messages {condition}"
        yield f"sql{name}", command("sql", path, query, "--json", of=place)
    yield "sql count", command("sql", path, COUNTED, "--json", of=counted)
    yield "dataset", library(store, dataset(None))
    yield "dataset of a topic", library(store, dataset(pc.field("topic") == about.topic))
    yield (
        "read_log",
        library(store, lambda opened: opened.read_log(columns=COLUMNS).read_all().to_pylist()),
    )
    to_parquet = ("export", path, "--format", "parquet", "--to")
    yield "export", written(store.parent / "exported", *to_parquet)
    yield "replay", written(store.parent / "replayed", "replay", path, "--to-parquet")
    for name in ("topics", "queues"):
        yield name, command(name, path, "--json", of=counted)
    for name in ("scheduled", "retries", "traces"):
        yield name, command(name, path, "--json", of=without_age)
    yield "transactions", command("transactions", path, "--json", of=fates)


def answers(store: Path, about: Message) -> dict[str, Answer]:
    """Each is asked as by a process of its own, which says once what it says once."""
    found = {}
    for name, answer in asked(store, about):
        found[name] = answer
        for said in (opening._SAID, slice_entries._SAID, log_reader._SAID):
            said.clear()
    return found


# --- cases ----------------------------------------------------------------------------------------


def silent(seed: str, folder: Path) -> list[str]:
    """The questions of a case whose answers lack rows without a word, and without an error of `verify`."""
    chance = random.Random(f"{SEED} {seed}")
    (folder / "intact").mkdir(parents=True)
    name = chance.choice(NAMES)
    golden = (unpack_kind if name in KINDS else unpack)(name, folder / "intact")
    with MessageStore.open(golden.path) as store:
        columns = ["topic", "keys", "uniqKey", "storeTimestamp"]
        messages = store.read_batches(columns=columns).read_all()
    one = messages.slice(chance.randrange(len(messages)), 1).to_pylist()[0]
    key = (one["keys"] or one["uniqKey"] or "none").split(" ")[0]
    about = Message(one["topic"], key, one["storeTimestamp"].isoformat(timespec="milliseconds"))
    intact = Path(golden.path)
    hurt = folder / "hurt" / intact.name
    shutil.copytree(intact, hurt)
    done = [injure(hurt, chance) for _ in range(chance.choice((1, 1, 2)))]
    before, after = answers(intact, about), answers(hurt, about)
    found = []
    for question, answer in after.items():
        known = before[question]
        lacking = known.rows - answer.rows
        quiet = answer.code == known.code and (not answer.said or answer.said == known.said)
        if lacking and known.code < 2 and quiet:
            found.append(f"{seed}: {name}, {done}, {question}: {len(lacking)} lacking, {about}")
    if found:
        with MessageStore.open(hurt) as store:
            if any(finding.severity is Severity.ERROR for finding in verify(store).findings):
                found = []
    shutil.rmtree(folder)
    return found


@pytest.mark.campaign
def test_no_answer_lacks_rows_without_a_word(tmp_path: Path) -> None:
    # The same part for each commit: cases that nobody has run belong to `make campaigns`.
    cases = range(PART if WORD else CASES)
    found = [one for number in cases for one in silent(str(number), tmp_path / str(number))]
    assert not found, "\n".join(found)
