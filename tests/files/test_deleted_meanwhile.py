"""A broker deletes files while its store is being opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.errors import MissingFileError
from rmq_store.files.segments import again_if_expired
from rmq_store.reading.log_reader import require_same_log
from rmq_store.snapshot.snapshot import take_snapshot
from spark_source.source import RmqStoreSource
from spark_source.streaming.stream_reader import RmqStoreStreamReader
from tests.support.golden import unpack


def once_before(call: Callable[..., Any], first: Callable[[], object]) -> Callable[..., Any]:
    """The call, with something done before it the first time."""
    left = [first]

    def called(*args: Any, **named: Any) -> Any:
        if left:
            left.pop()()
        return call(*args, **named)

    return called


def test_a_file_that_expires_while_the_store_is_opened_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(unpack("geometry-5.5.0", tmp_path).path)
    first, second = sorted((path / "commitlog").iterdir())[:2]
    (path / "abort").touch()  # a broker runs, so the log is searched for what is in no queue
    taken = once_before(take_snapshot, first.unlink)
    monkeypatch.setattr("rmq_store.reading.store_reader.take_snapshot", taken)
    with MessageStore.open(path) as store:
        assert store.log_range()[0] == int(second.name)


def test_a_stream_goes_on_when_a_file_that_it_has_read_expires_during_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(unpack("geometry-5.5.0", tmp_path).path)
    source = RmqStoreSource({"path": str(path), "startingOffsets": "earliest"})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, RmqStoreStreamReader)
    limit = reader.getDefaultReadLimit()
    offset = reader.latestOffset(reader.initialOffset(), limit)
    first = min((path / "commitlog").iterdir())
    checked = once_before(require_same_log, first.unlink)
    monkeypatch.setattr("rmq_store.reading.log_reader.require_same_log", checked)
    assert reader.latestOffset(offset, limit) == offset
    assert not first.exists()


def test_a_file_that_is_missing_for_another_reason_is_an_error_at_once() -> None:
    looks = []

    def look() -> None:
        looks.append(1)
        raise MissingFileError("store/commitlog", reason="no file", advice="none")

    with pytest.raises(MissingFileError):
        again_if_expired(look)
    assert len(looks) == 1


def test_files_of_a_queue_that_expire_while_the_store_is_open_are_not_needed(
    tmp_path: Path,
) -> None:
    with MessageStore.open(unpack("expired-5.5.0", tmp_path).path) as store:
        gone = 0
        for queue, state in store.snapshot().queues.items():
            files = store.view.files(queue)
            for file in files.chain.segments:
                if file.base + files.chain.file_size <= state.file_start * files.dtype.itemsize:
                    Path(file.path).unlink()
                    gone += 1
        assert gone
        assert sum(batch.num_rows for batch in store.read_batches()) == 623
