"""The journal of a store that Spark writes: the write that has begun, and the batches of streams."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rmq_store.files.journal import Journal, now
from spark_source.writing.target.staging import folder_beside, remove_if_empty

APPENDING, REPLACING = "appending", "replacing"


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

    query: str
    batch: int
    end: int
    at: str = ""


class WriteJournal(Journal[Begun, Done]):
    """The journal of one target, in the folder of its writes.

    It waits for another write into the same target: the driver of a killed query may live on for
    the rest of its commit.
    """

    of = "a write"
    types = (Begun | None, tuple[Done, ...])
    waits = True
    in_doubt = (
        "What the last write has done is unknown. Compare the store with what was written, then "
        "delete the file"
    )

    def __init__(self, target: str) -> None:
        self.folder = folder_beside(target)
        super().__init__(self.folder / "journal.json", self.folder / "lock")

    def __exit__(self, *exc: object) -> None:
        super().__exit__()
        remove_if_empty(self.folder)

    def done_of(self, query: str) -> Done | None:
        """The last batch of a query that is in the target."""
        return next((done for done in self.done if done.query == query), None)

    def begin(self, begun: Begun) -> Begun:
        """Record that a write is about to change the target."""
        begun = replace(begun, at=now())
        self.save(begun, *self.done)
        return begun

    def sign(self) -> None:
        """Record that the write that has begun is about to append."""
        assert self.begun is not None
        self.save(replace(self.begun, signed=True), *self.done)

    def finish(self, end: int, *, closed: bool, replaced: bool = False) -> None:
        """Record that the write is done: its rows are in the target, whose log ends at `end`.

        `closed`: the store is closed too, so nothing is left to do. `replaced`: the target is
        another store now, so the ends of other queries mean nothing.
        """
        assert self.begun is not None
        stream, done = self.begun.stream, self.done
        if replaced:
            done = tuple(replace(one, end=0) for one in done)
        if stream is not None:
            others = (one for one in done if one.query != stream.query)
            done = (*others, Done(stream.query, stream.batch, end, now()))
        self.save(None if closed else replace(self.begun, end=end), *done)
