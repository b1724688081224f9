"""The rows of the table `stream`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.walk import next_start
from rmq_store.errors import InvalidArgumentError, StoreError, from_os_error
from rmq_store.files.segments import again_if_expired
from rmq_store.reading.growing_log import check_place
from rmq_store.scan.parse_options import ScanOptions
from rmq_store.scan.scan import Target
from rmq_store.tables.table import Row
from spark_source.streaming.micro_batch_ends import Follower, StorePlace, from_dict
from spark_source.streaming.stream_options import StreamOptions

# The checkpoint folder of a query, as Spark writes it: what was planned and what was committed.
#
# Source: OffsetSeqLog and CommitLog of Spark's structured streaming.


_FORMAT = "v1"


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """The last micro-batch of a query that is committed, and the last one that is planned.

    `places`: up to where the committed ones go, by broker name, for each of the query's sources that
    is a stream of rmqstore.
    """

    committed: int | None
    planned: int | None
    places: tuple[dict[str, StorePlace], ...]


def read_progress(folder: str) -> QueryProgress:
    """What a query has done, by its checkpoint folder, on a local or mounted disk.

    Raises InvalidArgumentError for another folder, and for one that another source wrote.
    """
    offsets, commits = Path(folder, "offsets"), Path(folder, "commits")
    if not offsets.is_dir():
        raise _refused(
            folder,
            "this is no checkpoint folder of a query: it has no folder 'offsets'",
            "Give the option checkpointLocation of the query, a folder on a local or mounted disk",
        )
    planned = _numbers(offsets)
    # Spark deletes old offsets before their commits.
    committed = max(set(_numbers(commits)) & set(planned), default=None)
    if committed is None:
        return QueryProgress(None, max(planned, default=None), ())
    return QueryProgress(committed, max(planned), _places(folder, offsets / str(committed)))


def _numbers(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.glob("*") if path.name.isdigit()]


def _places(folder: str, file: Path) -> tuple[dict[str, StorePlace], ...]:
    try:
        version, _, *sources = file.read_text().splitlines()
    except OSError as error:
        raise from_os_error(file, error, "reading") from error
    except ValueError:
        version, sources = "", []
    if version != _FORMAT:
        raise _refused(
            str(file),
            f"the offsets of this query are in format {version!r}",
            f"Formats other than {_FORMAT} are not known to this release",
        )
    places = []
    for line in sources:
        try:
            values = json.loads(line)
        except ValueError:
            continue  # another source, or "-" for one that gave nothing
        if isinstance(values, dict) and "stores" in values:
            places.append(from_dict(values))
    if not places:
        raise _refused(
            folder,
            "this query does not read a stream of rmqstore",
            "Give the checkpoint folder of a query that does",
        )
    return tuple(places)


def _refused(path: str, reason: str, advice: str) -> InvalidArgumentError:
    return InvalidArgumentError(path, reason=reason, advice=advice)


def progress_rows(options: ScanOptions) -> Iterator[Row]:
    """How far the query of a checkpoint folder is in each store. Reads no queue of a live store.

    Raises as `read_progress`, and the errors of opening a store.
    """
    assert options.checkpoint is not None
    progress = read_progress(options.checkpoint)
    follower = Follower(options, StreamOptions())
    stores = follower.targets()
    for places in progress.places or ({},):
        for name in sorted({*stores, *places}):
            look = partial(_of_store, follower, name, stores.get(name), places, progress)
            yield {
                "brokerName": name,
                "batchId": progress.committed,
                "plannedBatchId": progress.planned,
                **again_if_expired(look),
            }


def _of_store(
    follower: Follower,
    name: str,
    target: Target | None,
    places: Mapping[str, StorePlace],
    progress: QueryProgress,
) -> Row:
    known = places.get(name)
    given = None if known is None else known.place.offset
    if target is None:
        return {"logOffset": given, "problem": "the store is gone"}
    with follower.open(name, target) as store:
        row: dict[str, object] = {"path": target.path, "logOffset": given}
        if known is not None:
            try:
                check_place(store.log, known.place, target.path)
            except StoreError as error:
                row["problem"] = str(error)
        start = store.log.start if known is None or "problem" in row else known.place.offset
        end = follower.follower_of(name, target).end(store.log, start)
        row["logEnd"] = end
        if "problem" in row or (known is None and progress.committed is None):
            return row  # nothing says where a query begins that has committed nothing yet
        row["bytesBehind"] = end - start
        if known is not None:
            row["storeTimestamp"] = time_before(store.log, start)
        return row


def time_before(log: CommitLog, offset: int) -> int | None:
    """When the record that ends at a log offset was stored (ms); None if it has expired."""
    segment = log.chain.segment_at(offset - 1)
    if segment is None:
        return None
    _, start = next_start(log, segment, offset - 1)
    return None if start is None else log.store_time_at(start)
