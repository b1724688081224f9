"""The ledger of a target: what a write has begun, and which batches of streams are done.

A write that was killed leaves its entry; the
next write finds it there, and undoes or finishes that write before it begins its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from rmq_store.errors import StoreError
from spark_source.writing.target.ledger_file import LedgerFile
from spark_source.writing.target.staging import folder_beside, remove_if_empty

APPENDING, REPLACING = "appending", "replacing"


class WriteLedgerError(StoreError):
    """The ledger beside a store does not allow a write, or cannot be read."""

    code = "RMQSTORE_WRITE_LEDGER"


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """A batch of a stream: the id of the query, and Spark's number of the batch."""

    query: str
    batch: int


@dataclass(frozen=True, slots=True)
class Begun:
    """A write that has begun.

    `start`: where the log of the target ended before it. `signed`: it is about to append, and its
    mark is in the store's lock file. `end`: where the log ends with this write; set once everything
    is there, and from then on the write is done. The store that takes the target's place is whole
    when its write begins, and has the mark in its lock file.
    """

    write_id: str
    kind: str
    start: int = 0
    signed: bool = False
    end: int | None = None
    stream: StreamBatch | None = None
    at: str = ""

    @property
    def mark(self) -> bytes:
        """4 bytes in the store's lock file that say that nobody opened it since this write."""
        return self.write_id[-4:].encode("ascii")


@dataclass(frozen=True, slots=True)
class Done:
    """The last batch of a query that is in the target, and where the log ended after it."""

    batch: int
    end: int
    at: str = ""


@dataclass(frozen=True, slots=True)
class _Content:
    begun: Begun | None = None
    queries: Mapping[str, Done] = field(default_factory=dict)


class WriteLedger:
    """The ledger of one target. A context manager that holds the target's lock.

    It waits for another write into the same target: the driver of a killed query may live on for
    the rest of its commit.
    """

    def __init__(self, target: str) -> None:
        self.folder = folder_beside(target)
        self._file = LedgerFile(
            self.folder / "ledger.json",
            self.folder / "lock",
            refusal=WriteLedgerError,
            in_doubt="What the last write has done is unknown. Compare the store with what was "
            "written, then delete the file",
        )
        self.path = self._file.path
        self._content = _Content()

    def __enter__(self) -> WriteLedger:
        self._file.lock(wait=True)
        try:
            self._content = self._file.load(_to_content) or _Content()
        except BaseException:
            self._unlock()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._unlock()

    def _unlock(self) -> None:
        self._file.unlock()
        remove_if_empty(self.folder)

    @property
    def begun(self) -> Begun | None:
        """The write that has begun and was not closed."""
        return self._content.begun

    def done(self, query: str) -> Done | None:
        """The last batch of a query that is in the target."""
        return self._content.queries.get(query)

    def begin(self, begun: Begun) -> Begun:
        """Record that a write is about to change the target."""
        begun = replace(begun, at=_now())
        self._save(replace(self._content, begun=begun))
        return begun

    def sign(self) -> None:
        """Record that the write that has begun is about to append."""
        assert self.begun is not None
        self._save(replace(self._content, begun=replace(self.begun, signed=True)))

    def finish(self, end: int, *, closed: bool, replaced: bool = False) -> None:
        """Record that the write is done: its rows are in the target, whose log ends at `end`.

        `closed`: the store is closed too, so nothing is left to do. `replaced`: the target is
        another store now, so the ends of other queries mean nothing.
        """
        assert self.begun is not None
        queries = dict(self._content.queries)
        if replaced:
            queries = {query: replace(done, end=0) for query, done in queries.items()}
        stream = self.begun.stream
        if stream is not None:
            queries[stream.query] = Done(stream.batch, end, _now())
        self._save(_Content(None if closed else replace(self.begun, end=end), queries))

    def forget(self) -> None:
        """Record that the write that had begun has left nothing to do."""
        self._save(replace(self._content, begun=None))

    def _save(self, content: _Content) -> None:
        self._content = content
        if content.begun is None and not content.queries:
            self._file.remove()
            return
        self._file.save(
            {
                "begun": None if content.begun is None else asdict(content.begun),
                "queries": {query: asdict(done) for query, done in content.queries.items()},
            }
        )


def _to_content(value: Mapping[str, Any]) -> _Content:
    return _Content(
        _to_begun(value["begun"]),
        {query: Done(**done) for query, done in value["queries"].items()},
    )


def _to_begun(value: dict[str, Any] | None) -> Begun | None:
    if value is None:
        return None
    stream = value["stream"]
    return Begun(
        **{
            **value,
            "stream": None if stream is None else StreamBatch(**stream),
        }
    )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
