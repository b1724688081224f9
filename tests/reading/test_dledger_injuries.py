"""Many injuries to a DLedger log: no message is lost without a word, none is made up.

What a read gives is compared with the entries as they were; nothing of the reader says what was hurt.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.errors import StoreError
from rmq_store.verify import verify
from tests.support.dledger import HEAD, Entry, entries_of, put_records_into_entries
from tests.support.golden import unpack, unpack_kind
from tests.support.running.campaigns import few

FAST_CASES, CASES = 4, 400
WIDTHS = (1, 2, 4, 8, 48, 60, 500, 4096)
COLUMNS = ["commitLogOffset", "storeSize", "topic", "queueId", "queueOffset", "rawBody"]

Row = tuple[int, int, str, int, int, bytes]


def row_of(entry: Entry) -> Row:
    """A record by its bytes alone; all hosts are IPv4."""
    body = entry.body
    size = int.from_bytes(body[84:88], "big")
    at = 88 + size
    topic = body[at + 1 : at + 1 + body[at]].decode()
    queue, offset = int.from_bytes(body[12:16], "big"), int.from_bytes(body[20:28], "big")
    return entry.place + HEAD.size, len(body), topic, queue, offset, body[88:at]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of one file with the queues of the broker."""
    store = unpack_kind("dledger-5.5.0", tmp_path_factory.mktemp("golden"))
    return Path(store.path)


@pytest.fixture(scope="module")
def relaid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of several files, whose records have CRCs, without queues."""
    store = unpack("crc-5.5.0", tmp_path_factory.mktemp("relaid"))
    put_records_into_entries(Path(store.path), 1 << 16)
    return Path(store.path)


def injure(root: Path, seed: int) -> list[str]:
    """Hurt one to three places of the log; about half of them near its end."""
    random_, done = random.Random(seed), []
    for _ in range(random_.choice((1, 1, 2, 3))):
        path = random_.choice(sorted((root / "dledger-n0" / "data").iterdir()))
        raw = bytearray(path.read_bytes())
        used = len(bytes(raw).rstrip(b"\0"))
        at = random_.randrange(max(0, used - 2000), used) if seed % 2 else random_.randrange(used)
        width = random_.choice(WIDTHS)
        how = random_.choice(("flip", "zero", "noise", "cut"))
        if how == "flip":
            raw[at] ^= 1 << random_.randrange(8)
        elif how == "cut":
            raw[at:] = bytes(len(raw) - at)
        else:
            count = len(raw[at : at + width])
            raw[at : at + width] = bytes(count) if how == "zero" else random_.randbytes(count)
        path.write_bytes(raw)
        done.append(f"{how} {width} at {at} of {path.name}")
    return done


def bytes_at(root: Path, place: int, size: int) -> bytes:
    paths = sorted((root / "dledger-n0" / "data").iterdir())
    file = [path for path in paths if int(path.name) <= place][-1]
    with file.open("rb") as opened:
        opened.seek(place - int(file.name))
        return opened.read(size)


def read(root: Path, queues: bool) -> tuple[list[Row], list[StoreError]]:
    """All rows of the queues or the log, and the damage; one error alone if the store is refused."""
    damage: list[StoreError] = []
    try:
        with MessageStore.open(root, queues=queues) as store:
            table = (
                store.read_batches(
                    columns=COLUMNS, include_system_topics=True, on_damage=damage.append
                )
                if queues
                else store.read_log(columns=COLUMNS, on_damage=damage.append)
            ).read_all()
            verify(store)
    except StoreError as error:
        return [], [error]
    return [tuple(row.values()) for row in table.to_pylist()], damage


def check(whole: Path, root: Path, seed: int) -> None:
    hurt = injure(root, seed)
    before = list(entries_of(whole / "dledger-n0" / "data"))
    own = {entry: bytes_at(root, entry.place + HEAD.size, len(entry.body)) for entry in before}
    intact = {row_of(entry) for entry in before if own[entry] == entry.body}
    places = {row_of(entry)[0] for entry in before if own[entry] != entry.body}
    for queues in (False, (root / "consumequeue").exists()):
        rows, damage = read(root, queues)
        said = f"{hurt}, queues {queues}"
        assert len(set(rows)) == len(rows), said
        made_up = [row for row in rows if row not in intact and row[0] not in places]
        assert not made_up, said
        lost = intact - set(rows)
        assert not lost or damage, said
        if queues and rows:  # an entry leads to each of them
            assert not lost, said


SEEDS = [*range(FAST_CASES), *range(100, 100 + CASES)]


@pytest.mark.parametrize("seed", few("dledger injuries", SEEDS, *range(FAST_CASES)))
@pytest.mark.parametrize("kind", ["golden", "relaid"])
def test_rows_damage_or_an_error(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, seed: int
) -> None:
    whole, root = request.getfixturevalue(kind), tmp_path / "hurt"
    shutil.copytree(whole, root, ignore=shutil.ignore_patterns("index"))
    check(whole, root, seed)
