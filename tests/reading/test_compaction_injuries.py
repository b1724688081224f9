"""Many injuries to the files of compaction topics: no message is lost without a word, none is made up.

What a read gives is compared with what a client was served before; nothing of the reader says what was
hurt.
"""

from __future__ import annotations

import base64
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.errors import StoreError
from rmq_store.verify import verify
from tests.support.golden import GoldenStore, unpack_kind
from tests.support.running.campaigns import few

STORES = ("compacted-5.5.0", "compact-timer-5.5.0")
TOPIC = "state"
FAST_CASES, CASES = 10, 250
WIDTHS = (1, 2, 4, 8, 46, 92, 500, 4096)
NUMBERS = (0, 1, -1, 2**15, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63))
COLUMNS = ["topic", "queueId", "queueOffset", "commitLogOffset", "storeSize", "tags", "body"]
UNREAD = ("position-checkpoint", "position-checkpoint.bak")

Row = tuple[Any, ...]


@pytest.fixture(scope="module", params=STORES)
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GoldenStore:
    return unpack_kind(request.param, tmp_path_factory.mktemp("golden"))


def served(golden: GoldenStore) -> set[Row]:
    return {
        (
            *(TOPIC, line["queue"], line["offset"], line["phy"], line["size"]),
            line["props"].get("TAGS"),
            base64.b64decode(line["body"]),
        )
        for line in golden.lines("served")
        if line["topic"] == TOPIC
    }


def files_of(root: Path) -> list[Path]:
    every = sorted(path for path in (root / "compaction").rglob("*") if path.is_file())
    return [path for path in every if path.name not in UNREAD]


def injure(root: Path, seed: int) -> list[str]:
    """Hurt one to three places of the files, most of them where something is written."""
    random_, done = random.Random(seed), []
    for _ in range(random_.choice((1, 1, 2, 3))):
        path = random_.choice(files_of(root))
        raw = bytearray(path.read_bytes())
        used = max(1, len(bytes(raw).rstrip(b"\0")))
        at = random_.randrange(len(raw) if seed % 5 == 4 and raw else used)
        width = random_.choice(WIDTHS)
        how = random_.choice(
            ("flip", "flip", "zero", "noise", "number", "cut", "truncate", "swap", "lose", "copy")
        )
        if how == "lose":
            path.unlink()
        elif how == "truncate":
            path.write_bytes(raw[:at])
        elif how == "copy":  # over another file of its kind
            others = [one for one in files_of(root) if one.parent.parent.parent == path.parents[2]]
            random_.choice(others).write_bytes(raw)
        else:
            _write(random_, raw, how, at, width, used)
            path.write_bytes(raw)
        done.append(f"{how} {width} at {at} of {path.relative_to(root)}")
    return done


def _write(
    random_: random.Random, raw: bytearray, how: str, at: int, width: int, used: int
) -> None:
    if how == "flip":
        raw[at] ^= 1 << random_.randrange(8)
    elif how == "cut":
        raw[at:] = bytes(len(raw) - at)
    elif how == "number":
        size, place = random_.choice((2, 4, 8)), at - at % 46 + random_.choice((0, 8, 28, 36))
        if place + size <= len(raw):
            value = random_.choice(NUMBERS) % (1 << 8 * size)
            raw[place : place + size] = value.to_bytes(size, "big")
    elif how == "swap":
        first, second = sorted((at, random_.randrange(used)))
        width = min(width, second - first, len(raw) - second)
        one, other = raw[first : first + width], raw[second : second + width]
        raw[first : first + width], raw[second : second + width] = other, one
    else:
        count = len(raw[at : at + width])
        raw[at : at + width] = bytes(count) if how == "zero" else random_.randbytes(count)


def read(root: Path, tag: str | None) -> tuple[list[Row], list[StoreError]]:
    """All rows and the damage; one error alone if the store is refused."""
    damage: list[StoreError] = []
    try:
        with MessageStore.open(root) as store:
            found = store.read_batches(TOPIC, columns=COLUMNS, tags=tag, on_damage=damage.append)
            rows = [tuple(row.values()) for row in found.read_all().to_pylist()]
    except StoreError as error:
        return [], [error]
    return rows, damage


def a_pair_of_files_is_gone(root: Path, whole: set[str]) -> bool:
    """Whether a file and its counterpart are both gone. Nothing in the folder shows that."""
    left = {str(path.relative_to(root)) for path in files_of(root)}
    gone = whole - left
    return any(name.replace("compactionCq", "compactionLog") in gone - {name} for name in gone)


def check(golden: GoldenStore, root: Path, seed: int) -> None:
    names = {str(path.relative_to(root)) for path in files_of(root)}
    before = served(golden)
    hurt = injure(root, seed)
    rows, damage = read(root, None)
    assert len(set(rows)) == len(rows), hurt
    whole_queues = {  # without any file for compaction a queue is read as it is
        queue_id
        for queue_id in {row[1] for row in before}
        if not any(f"/{TOPIC}/{queue_id}/" in str(path) for path in files_of(root))
    }
    kept = {row for row in rows if row[1] not in whole_queues}
    made_up = kept - before
    # No CRC is of a record's tags and properties: these may be others.
    made_up = {row for row in made_up if (row[:5], row[6]) not in {(b[:5], b[6]) for b in before}}
    assert not made_up, hurt
    there = {(row[:5], row[6]) for row in rows}
    lost = {row for row in before if row[1] not in whole_queues and (row[:5], row[6]) not in there}
    if not a_pair_of_files_is_gone(root, names):
        assert not lost or damage, hurt
    with_tag, _ = read(root, "even")
    assert {row[:5] for row in with_tag} == {row[:5] for row in rows if row[5] == "even"}, hurt
    with MessageStore.open(root) as store:
        findings = [one for one in verify(store).findings if one.code.startswith("compaction")]
        if damage and not whole_queues:
            assert findings, hurt
        for queue in store.queues(TOPIC):
            try:
                answer = store.get_message(*queue, 0, 1000)
            except StoreError:
                continue
            offsets = [message.queue_offset for message in answer.messages]
            if queue.queue_id not in whole_queues:
                assert offsets == [row[2] for row in rows if row[1] == queue.queue_id], hurt


SEEDS = [*range(FAST_CASES), *range(100, 100 + CASES)]


@pytest.mark.parametrize("seed", few("compaction injuries", SEEDS, *range(FAST_CASES)))
def test_rows_damage_or_an_error(golden: GoldenStore, tmp_path: Path, seed: int) -> None:
    root = tmp_path / "hurt"
    shutil.copytree(golden.path, root)
    check(golden, root, seed)
