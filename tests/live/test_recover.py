"""Damaged copies of real brokers' stores, recovered by the real store classes and by us as they do it."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store.config.broker_conf import StoreConfig, read_properties
from rmq_store.config.topics_json import batch_topics, read_topic_configs
from rmq_store.errors import UnrecoverableStoreError
from rmq_store.recovery import RecoveryReport, plan_recovery, recover
from rmq_store.testing.live_broker.harness import boot_copy, read_all
from rmq_store.testing.live_broker.java import JVM_OPENS, class_path, jdk_tool
from rmq_store.testing.live_broker.needs import need_jars
from tests.recovery.test_crash import kill_rounds
from tests.recovery.test_queue_extension import cut_log, extensions
from tests.support import hurt_stores
from tests.support.damage import flip, write_at
from tests.support.golden import GOLDEN, unpack
from tests.support.running.campaigns import count, some
from tests.support.stores import QUEUES, SMALL, TOPICS

pytestmark = [pytest.mark.live, pytest.mark.campaign]

SOURCE = Path(__file__).resolve().parent / "Recover.java"
RELEASE = "5.5.0"
SEED = 20261122
COPIES = 30  # of each store
STORES = [
    "clean-5.5.0",
    "crash-5.5.0",
    "crash-5.3.3",
    "crash-4.9.7",
    "hot-5.5.0",
    "expired-5.5.0",
    "geometry-5.5.0",
    "nommap-5.5.0",
    "tsp-5.5.0",
    "lmq-5.3.3",
    "hours-clean-5.5.0",
    "hours-crash-5.5.0",
    "hours-crash-4.9.7",
    "back-crash-5.5.0",
    "days-crash-5.5.0",
]
PASSED_ON = (
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "mapperFileSizeBatchConsumeQueue",
    "maxHashSlotNum",
    "maxIndexNum",
    "enableLmq",
    "enableMultiDispatch",
)


# --- damage -----------------------------------------------------------------------------------------


def used_of(path: Path) -> int:
    return max(1, len(path.read_bytes().rstrip(b"\0")))


def files_of(root: Path, part: str) -> list[Path]:
    return sorted(path for path in (root / part).rglob("*") if path.is_file())


def flip_somewhere(chance: random.Random, root: Path, part: str) -> None:
    path = chance.choice(files_of(root, part))
    at = chance.randrange(used_of(path))
    flip(path, at, 1 << chance.randrange(8))


def flip_near_the_end(chance: random.Random, root: Path, part: str) -> None:
    path = max((p for p in files_of(root, part) if p.read_bytes().strip(b"\0")), default=None)
    if path is None:
        return
    at = max(0, used_of(path) - chance.randrange(1, 600))
    flip(path, at, 1 << chance.randrange(8))


def zero(chance: random.Random, root: Path, part: str) -> None:
    path = chance.choice(files_of(root, part))
    at = chance.randrange(used_of(path))
    write_at(path, at, bytes(min(chance.choice((1, 20, 200, 4096)), path.stat().st_size - at)))


def zero_the_rest(chance: random.Random, root: Path, part: str) -> None:
    """As a file looks whose last pages were not written."""
    path = chance.choice(files_of(root, part)[-2:])
    at = chance.randrange(used_of(path))
    write_at(path, at, bytes(path.stat().st_size - at))


def zero_in_front(chance: random.Random, root: Path, part: str) -> None:
    write_at(chance.choice(files_of(root, part)), 0, bytes(chance.choice((20, 46, 100))))


def cut(chance: random.Random, root: Path, part: str) -> None:
    path = chance.choice(files_of(root, part))
    os.truncate(path, chance.choice((0, chance.randrange(path.stat().st_size))))


def lose(chance: random.Random, root: Path, part: str) -> None:
    chance.choice(files_of(root, part)).unlink()


def lose_last(chance: random.Random, root: Path, part: str) -> None:
    files_of(root, part)[-1].unlink()


def lose_folder(chance: random.Random, root: Path, part: str) -> None:
    folders = sorted({path.parent for path in files_of(root, part)})
    shutil.rmtree(chance.choice(folders))


def lose_all(chance: random.Random, root: Path, part: str) -> None:
    shutil.rmtree(root / part)


def stale_tail(chance: random.Random, root: Path, part: str) -> None:
    """The log breaks off earlier, and what was behind is still there: an old cut of the broker's."""
    path = max((p for p in files_of(root, part) if p.read_bytes().strip(b"\0")), default=None)
    if path is None:
        return
    at = chance.randrange(used_of(path))
    write_at(path, at, chance.randbytes(chance.choice((4, 30))))


DAMAGE: list[tuple[Callable[[random.Random, Path, str], None], tuple[str, ...]]] = [
    (flip_somewhere, ("commitlog", "consumequeue")),
    (flip_near_the_end, ("commitlog", "consumequeue")),
    (zero, ("commitlog", "consumequeue")),
    (zero_the_rest, ("commitlog", "consumequeue", "batchconsumequeue")),
    (zero_in_front, ("commitlog", "consumequeue", "batchconsumequeue")),
    (cut, ("commitlog", "consumequeue", "index")),
    (lose, ("commitlog", "consumequeue", "index")),
    (lose_last, ("commitlog", "consumequeue", "batchconsumequeue")),
    (lose_folder, ("consumequeue",)),
    (lose_all, ("consumequeue", "index")),
    (stale_tail, ("commitlog",)),
]


def hurt(chance: random.Random, root: Path) -> str:
    """Damage a store in one or two ways; what was done."""
    done = []
    for _ in range(chance.choice((1, 1, 1, 2))):
        kind, parts = chance.choice(DAMAGE)
        there = [part for part in parts if files_of(root, part)]
        if there:
            part = chance.choice(there)
            kind(chance, root, part)
            done.append(f"{kind.__name__} {part}")
    abort = root / "abort"
    if chance.random() < 0.5:
        abort.unlink(missing_ok=True) if abort.exists() else abort.touch()
        done.append("abort" if abort.exists() else "no abort")
    if chance.random() < 0.2:
        (root / "checkpoint").unlink(missing_ok=True)
        done.append("no checkpoint")
    return ", ".join(done)


# --- both sides ---------------------------------------------------------------------------------------


def java(stores: list[Path], settings: dict[str, str]) -> list[dict[str, Any]]:
    lines = []
    for store in stores:
        lines.append("\t".join([str(store), *sorted(batch_topics(read_topic_configs(store)))]))
    program = ["-cp", class_path(SOURCE, RELEASE), "Recover"]
    with tempfile.TemporaryDirectory() as home:
        options = [f"-Dstore.{name}={value}" for name, value in settings.items()]
        done = subprocess.run(
            [jdk_tool("java"), *JVM_OPENS, f"-Duser.home={home}", *options, *program],
            input="\n".join(lines),
            capture_output=True,
            encoding="utf-8",
            timeout=500,
            check=True,
        )
    return [json.loads(line) for line in done.stdout.splitlines()]


def ours(store: Path, config: StoreConfig) -> RecoveryReport | None:
    try:
        return plan_recovery(store, config, method="broker", release=RELEASE)
    except UnrecoverableStoreError:
        return None


def difference(theirs: dict[str, Any], mine: RecoveryReport | None) -> str:
    """Where the two do not agree; empty where they do."""
    if not theirs.get("loaded"):
        return "" if mine is None else f"the broker does not start: {theirs}"
    if mine is None:
        return "the broker starts"
    if theirs["end"] != mine.log_end:
        return f"end of log: broker {theirs['end']}, we {mine.log_end}"
    queues = {f"{q.topic}@{q.queue_id}": list(ends) for q, ends in mine.queues.items()}
    differ = {
        name: (theirs["queues"].get(name), queues.get(name))
        for name in sorted(theirs["queues"].keys() | queues.keys())
        if theirs["queues"].get(name) != queues.get(name)
    }
    return f"queues (broker, we): {differ}" if differ else ""


@pytest.mark.parametrize("name", some("damaged copies", STORES, 3))
def test_damaged_stores_are_recovered_as_by_the_broker(name: str, tmp_path: Path) -> None:
    need_jars(RELEASE)
    print(f"seed {SEED}")
    golden = unpack(name, tmp_path)
    settings = {k: v for k, v in read_properties(golden.conf).items() if k in PASSED_ON}
    pairs, said = [], []
    for number in range(COPIES):
        first, second = tmp_path / f"java{number}", tmp_path / f"ours{number}"
        shutil.copytree(golden.path, first, ignore=shutil.ignore_patterns("rocksdbstore"))
        said.append(hurt(random.Random(f"{SEED} {name} {number}"), first))
        shutil.copytree(first, second)
        pairs.append((first, second))
    answers = java([first for first, _ in pairs], settings)
    config = StoreConfig.of(settings)
    wrong = []
    for number, (theirs, (_, second)) in enumerate(zip(answers, pairs, strict=True)):
        reported = difference(theirs, ours(second, config))
        if reported:
            wrong.append(f"copy {number} ({said[number]}): {reported}")
    assert not wrong, "\n".join(wrong)
    started = [answer for answer in answers if answer.get("loaded")]
    ends = {(answer["end"], json.dumps(answer["queues"])) for answer in started}
    print(f"{name}: {len(started)} of {COPIES} copies start, to {len(ends)} different ends")
    assert len(started) >= COPIES // 2
    assert len(ends) >= COPIES // 5


@pytest.mark.parametrize("name", some("recoveries", hurt_stores.STORES, 4))
def test_the_recorded_recoveries_are_those_of_the_classes(name: str, tmp_path: Path) -> None:
    need_jars(RELEASE)
    stores = []
    for hurting in hurt_stores.HURTS:
        golden = unpack(name, tmp_path / hurting.__name__)
        hurting(golden)
        stores.append(Path(golden.path))
    settings = {k: v for k, v in read_properties(golden.conf).items() if k in PASSED_ON}
    found = [
        {**answer, "store": name, "hurt": hurting.__name__}
        for hurting, answer in zip(hurt_stores.HURTS, java(stores, settings), strict=True)
    ]
    recorded = map(json.loads, (GOLDEN / "recoveries.jsonl").read_text("utf-8").splitlines())
    assert found == [answer for answer in recorded if answer["store"] == name]


KILLED = 10


@pytest.mark.parametrize("kind", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_the_broker_starts_on_stores_of_killed_writers(kind: str, tmp_path: Path) -> None:
    """As they were left, and after we recovered them: then it has what we have, and changes nothing."""
    need_jars(RELEASE)
    print(f"seed {SEED}")
    config = {**SMALL, "flushDiskType": kind}
    left, mended, promised = [], [], []
    rounds = kill_rounds(tmp_path, config, KILLED * 3, f"{SEED} {kind}")
    for number, (root, acknowledged) in enumerate(rounds):
        if number % 3 == 2:
            left.append(tmp_path / f"left{number}")
            mended.append(tmp_path / f"mended{number}")
            promised.append(max(acknowledged.values(), default=-1))
            shutil.copytree(root, left[-1])
            shutil.copytree(root, mended[-1])
    settings = {name: str(value) for name, value in SMALL.items()}
    ours = [recover(store, config) for store in mended]
    for report, theirs in zip(ours, java(mended, settings), strict=True):
        assert theirs["loaded"]
        queues = {f"{q.topic}@{q.queue_id}": list(ends) for q, ends in report.queues.items()}
        assert theirs["queues"] == queues
        assert theirs["end"] == report.log_end
    for theirs, last in zip(java(left, settings), promised, strict=True):
        assert theirs["loaded"]
        assert theirs["end"] > last


BOOTED = count(10, 3)


def test_a_whole_broker_serves_what_killed_writers_acknowledged(tmp_path: Path) -> None:
    """Real brokers on stores as SIGKILL left them: each message that was acknowledged is served."""
    need_jars(RELEASE)
    print(f"seed {SEED}")
    config = {**SMALL, "flushDiskType": "SYNC_FLUSH"}
    # Queues that only the log has yet must be declared for a client to be allowed to read them.
    declared = {topic: {"readQueueNums": QUEUES, "writeQueueNums": QUEUES} for topic in TOPICS}
    rounds = kill_rounds(tmp_path / "killed", config, 3 * BOOTED, f"{SEED} booted")
    for number, (root, acknowledged) in enumerate(rounds):
        if number % 3 != 2:
            continue
        work = tmp_path / f"run{number}"
        with boot_copy(root, work, RELEASE, SMALL, topics=declared) as broker:
            rows = read_all(broker, TOPICS)
        numbers = [int(base64.b64decode(row["body"])[:6]) for row in rows]
        assert len(set(numbers)) == len(numbers)
        assert set(acknowledged) <= set(numbers)
        shutil.rmtree(work)


def test_the_classes_take_a_recovered_extension_as_it_is(tmp_path: Path) -> None:
    need_jars(RELEASE)
    golden = unpack("ext-5.5.0", tmp_path)
    settings, root = read_properties(golden.conf), Path(golden.path)
    assert settings["enableConsumeQueueExt"] == "true"
    shutil.rmtree(root / "rocksdbstore", ignore_errors=True)
    short = root / "consumequeue_ext/orders/1/00000000000000000000"
    short.write_bytes(short.read_bytes()[:980])
    log_end = cut_log(root, file=1, records=40)
    (refused,) = java([root], settings)
    assert not refused["loaded"]
    recover(root, golden.conf)
    kept = extensions(root)
    (answer,) = java([root], settings)
    assert (answer["loaded"], answer["end"]) == (True, log_end)
    assert extensions(root) == kept
