"""A topic that was deleted and created again with fewer or more queues: verify, rebuild and recover."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.admin.rebuild import rebuild
from rmq_store.recovery import recover
from rmq_store.verify import verify
from tests.support.renumbered import renumber, units_of, write_units
from tests.support.stores import SMALL

OLD, NEW = 25, 10  # messages of each queue in the earlier life, and in the last one


def store_of(root: Path, before: int, after: int) -> None:
    """A store with both lives in its log, and the queues of the last one alone, as the broker leaves it."""
    with MessageStore.create(root, SMALL) as writer:
        for life, queues, count in (("old", before, OLD), ("new", after, NEW)):
            for number in range(queues * count):
                body = f"{life}{number}".encode()
                writer.append({"topic": "orders", "queueId": number % queues, "body": body})
    store: Any = SimpleNamespace(path=str(root))
    for queue in range(min(before, after)):
        renumber(store, "orders", queue, lambda n: n if n < OLD else n - OLD)
        write_units(store, "orders", queue, units_of(store, "orders", queue)[OLD:])
    for queue in range(after, before):
        shutil.rmtree(root / "consumequeue/orders" / str(queue))
    for path in (root / "config").glob("topics.json*"):
        table = json.loads(path.read_text())
        topic = table["topicConfigTable"]["orders"]
        topic["readQueueNums"] = topic["writeQueueNums"] = after
        path.write_text(json.dumps(table))


def as_dispatched(live: dict[str, list[int]], new: dict[str, list[int]]) -> None:
    """The queues of the topic are the live ones. Of queues that it no longer has, of which no consumer
    reads, the log says the messages of the earlier life, and a broker that dispatches it lists them."""
    assert {queue: new[queue] for queue in live} == live
    assert [len(new[queue]) for queue in new.keys() - live.keys()] == [OLD] * (len(new) - len(live))


def listed(root: Path) -> dict[str, list[int]]:
    """Log offsets by queue, from its files."""
    found = {}
    for folder in sorted((root / "consumequeue/orders").iterdir()):
        raw = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
        units = list(struct.iter_unpack(">qiq", raw))
        found[folder.name] = [place for place, size, _ in units if size]
    return found


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (3, 3)])
def test_the_last_life_is_listed(before: int, after: int, tmp_path: Path) -> None:
    """Nothing is wrong with it, and a rebuild and a recovery list what the broker had."""
    root = tmp_path / "s"
    store_of(root, before, after)
    with MessageStore.open(root) as store:
        bodies = store.read_batches("orders", columns=["body"]).read_all()["body"].to_pylist()
        report = verify(store)
    assert sorted(bodies) == sorted(f"new{n}".encode() for n in range(after * NEW))
    again = {(one.severity.value, one.code, one.count) for one in report.findings}
    assert again == {("note", "queue-earlier-life", OLD)} | (
        {("note", "queue-deleted", OLD)} if after < before else set()
    )
    live = listed(root)
    rebuild(root, tmp_path / "new")
    as_dispatched(live, listed(tmp_path / "new"))
    shutil.rmtree(root / "consumequeue/orders")
    (root / "checkpoint").unlink()
    (root / "abort").touch()
    recover(root)
    as_dispatched(live, listed(root))
