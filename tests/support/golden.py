"""Stores that real brokers wrote, and what the broker's own classes read in them."""

from __future__ import annotations

import atexit
import base64
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from zlib_ng import zlib_ng

from rmq_store import MessageStore, QueueId
from rmq_store.format.byte_layout import Property
from rmq_store.format.compression import SysFlag
from rmq_store.verify import VerifyReport, verify
from tests.support.checkout import CHECKOUT

GOLDEN = CHECKOUT / "tests" / "golden"
STORES = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))
# Of these the truth is what survived the broker's own recovery.
UNCLEAN = [name for name in STORES if "crash-" in name or name.startswith("hot-")]
CLEAN = [name for name in STORES if name not in UNCLEAN]
# Without those of thousands of records that differ in their number alone from others of their release.
MODEST = [
    name
    for name in STORES
    if not name.startswith(("hours-", "days-", "back-"))
    and name not in ("clean-4.9.0", "clean-4.9.7", "clean-5.1.1", "clean-5.2.0", "clean-5.3.3")
    and name not in ("crash-4.9.7", "crash-5.5.0", "proxy-5.5.0")
]
# Those of `unpack_kind`.
KINDS = sorted(path.name.removesuffix(".tar.xz") for path in (GOLDEN / "kinds").glob("*.tar.xz"))

Truth = dict[str, Any]


@dataclass(frozen=True)
class GoldenStore:
    """A store of a real broker, and what its own classes said is in it."""

    folder: Path

    @property
    def name(self) -> str:
        """Such as clean-5.3.3."""
        return self.folder.name

    @property
    def path(self) -> str:
        """The store's root."""
        return str(self.folder / "store")

    @property
    def conf(self) -> str:
        """The configuration the broker ran with."""
        return str(self.folder / "broker.conf")

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The objects of a file of JSON lines: `truth` or `answers`."""
        return _lines(self.folder / f"{name}.jsonl")

    @property
    def truth(self) -> list[Truth]:
        """Every record in the order of the log, as the release's own decoder read it."""
        return self.lines("truth")

    @property
    def by_log_offset(self) -> Mapping[int, Truth]:
        """The truth by commitLogOffset."""
        return _by_log_offset(self.folder)

    @property
    def by_queue(self) -> Mapping[QueueId, list[Truth]]:
        """The truth of every queue in its order; light queues (LMQ) list records of other topics."""
        return _by_queue(self.folder)

    def answers(self, call: str) -> list[dict[str, Any]]:
        """What the broker answered to one kind of question."""
        return [answer for answer in self.lines("answers") if answer["call"] == call]

    @property
    def log_folders(self) -> dict[str, str]:
        """The setting with the folders of the log, where they are not in the root."""
        folders = json.loads((self.folder / "golden.json").read_text("utf-8")).get("commitLogPaths")
        return {"storePathCommitLog": ",".join(folders)} if folders else {}

    def open(self, **how: Any) -> MessageStore:
        """The store, opened to read; where its log has folders of its own, with their names."""
        if self.log_folders:
            how.setdefault("config", self.log_folders)
        return MessageStore.open(self.path, **how)

    def verified(self, **how: Any) -> VerifyReport:
        """What verify says of the store, opened with `how`."""
        with self.open(**how) as store:
            return verify(store)

    def fingerprint(self) -> dict[str, tuple[int, int, int]]:
        """Of every file and folder: size, mtime and a checksum of the bytes."""
        found = {}
        for folder, _, names in os.walk(self.path):  # half the time of Path.rglob
            found[folder] = (0, os.stat(folder).st_mtime_ns, 0)
            for path in (f"{folder}/{name}" for name in names):
                with open(path, "rb") as file:
                    stat, crc = os.fstat(file.fileno()), zlib_ng.crc32(file.read())
                found[path] = (stat.st_size, stat.st_mtime_ns, crc)
        return found


def files_below(root: Path, *folders: str) -> dict[str, bytes]:
    """The bytes of all files in folders of a root, or in all of it, by their paths there."""
    paths = (path for folder in folders or (".",) for path in sorted((root / folder).rglob("*")))
    return {str(path.relative_to(root)): path.read_bytes() for path in paths if path.is_file()}


def verified(root: str | Path, **how: Any) -> VerifyReport:
    """What verify says of the store in a folder, opened with `how`."""
    with MessageStore.open(root, **how) as store:
        return verify(store)


Golden = Callable[[str], GoldenStore]  # the fixture of tests/conftest.py


@cache
def _lines(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for line in lines:
        if "bodyText" in line:
            line["body"] = base64.b64encode(line.pop("bodyText").encode("ascii")).decode("ascii")
    return lines


@cache
def _by_log_offset(folder: Path) -> dict[int, Truth]:
    return {record["commitLogOffset"]: record for record in _lines(folder / "truth.jsonl")}


@cache
def _by_queue(folder: Path) -> dict[QueueId, list[Truth]]:
    queues: dict[QueueId, list[Truth]] = defaultdict(list)
    for record in _lines(folder / "truth.jsonl"):
        if in_a_queue(record):
            for queue in queues_of(record):
                queues[queue].append(record)
    return queues


def queues_of(record: Truth) -> Iterator[QueueId]:
    """The queue of a record, and the light queues that list it as well."""
    yield QueueId(record["topic"], record["queueId"])
    properties = record["properties"]
    if Property.INNER_MULTI_QUEUE_OFFSET in properties:
        for name in properties[Property.INNER_MULTI_DISPATCH].split(","):
            yield QueueId(name, 0 if name.startswith("%LMQ%") else record["queueId"])


def in_a_queue(record: Truth) -> bool:
    """Prepared and rolled-back records are in the log, and no queue lists them."""
    kind = record["sysFlag"] & SysFlag.TRANSACTION_MASK
    return kind in (0, SysFlag.TRANSACTION_COMMIT)


def user_topic(record: Truth) -> bool:
    """Whether a message is listed in a queue of a topic that the golden broker's users made."""
    system = ("%", "RMQ_SYS_", "rmq_sys_", "SCHEDULE_TOPIC_XXXX")
    return in_a_queue(record) and not record["topic"].startswith(system)


def messages_in(record: Truth) -> int:
    """How many messages a record holds: more than one in an inner batch."""
    return int(record["properties"].get(Property.INNER_NUM, 1))


def bodies_of(record: Truth) -> tuple[bytes, bytes]:
    """The body as the consumer gets it, and as it is stored."""
    stored = base64.b64decode(record["body"] or "")
    return base64.b64decode(record.get("bodyDecompressed") or record["body"] or ""), stored


def columns_of(record: Truth) -> dict[str, Any]:
    """What the columns of a record must hold, but for the queue it was found by; times in ms."""
    same = (
        "commitLogOffset",
        "storeSize",
        "tags",
        "keys",
        "uniqKey",
        "flag",
        "sysFlag",
        "bornTimestamp",
        "bornHost",
        "storeTimestamp",
        "storeHost",
        "reconsumeTimes",
        "preparedTransactionOffset",
        "bodyCrc",
        "properties",
    )
    body, stored = bodies_of(record)
    found = {name: record[name] for name in same}
    return {**found, "msgId": record["offsetMsgId"], "body": body, "rawBody": stored}


def keys_of(record: Truth) -> set[str]:
    """The words a record is indexed under; a rolled-back one is not."""
    if record["sysFlag"] & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_ROLLBACK:
        return set()
    return {word for word in (*(record["keys"] or "").split(" "), record["uniqKey"]) if word}


def unpack(name: str, target: Path) -> GoldenStore:
    """A fresh copy of the golden store `name` under `target`, to be changed at will."""
    return _copied(_unpacked(name), target)


# A test may change tempfile's folder for itself, and its own is deleted after it.
_TEMPORARY = tempfile.gettempdir()


@cache
def _unpacked(name: str, folder_of: str = ".") -> Path:
    """The store as it was packed; to copy it takes a tenth of the time that unpacking takes."""
    folder = Path(tempfile.mkdtemp(prefix="rmqstore-golden-", dir=_TEMPORARY))
    # A child that was forked ends without these, and so does not take the folder away from us.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with tarfile.open(GOLDEN / folder_of / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    for path in folder.rglob("*"):
        if path.stat().st_size > 1 << 20 and path.is_file():
            _dig(path)
    return folder / name


def _dig(path: Path) -> None:
    """Make a hole of the zeros at the end of a file, as a broker has there."""
    stat = path.stat()
    os.truncate(path, len(path.read_bytes().rstrip(b"\0")))
    os.truncate(path, stat.st_size)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _copied(source: Path, target: Path) -> GoldenStore:
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", source, target], check=True)  # holes stay holes
    return GoldenStore(target / source.name)


def unpack_kind(name: str, target: Path) -> GoldenStore:
    """As `unpack`, for a store without truth: of `tests/golden/kinds`."""
    return _copied(_unpacked(name, "kinds"), target)


def unpack_state(name: str, target: Path) -> GoldenStore:
    """As `unpack`, for a store without truth: of `tests/golden/state`."""
    unpack_field(name, target, "state")
    return GoldenStore(target / name)


def unpack_field(name: str, target: Path, folder: str = "field") -> Path:
    """A fresh copy of a store of `tests/golden/field`, whose large files are nearly all holes."""
    with tarfile.open(GOLDEN / folder / f"{name}.tar.xz") as archive:
        archive.extractall(target, filter="data")
    return target / name


def offsets(store: MessageStore, **how: Any) -> list[int]:
    """CommitLog offsets of all messages in queues, as a store gives them."""
    batches = store.read_batches(
        columns=["commitLogOffset", "flag"], include_system_topics=True, **how
    )
    return [offset for batch in batches for offset in batch.column(0).to_pylist()]


def wanted(golden: GoldenStore) -> list[int]:
    """The same as the truth has them."""
    return [record["commitLogOffset"] for record in golden.truth if in_a_queue(record)]


def log_files(golden: GoldenStore) -> list[Path]:
    """The files of the log, in order."""
    return sorted(Path(golden.path, "commitlog").iterdir())
