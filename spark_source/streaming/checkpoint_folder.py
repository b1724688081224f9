"""The checkpoint folder of a query, as Spark writes it: what was planned and what was committed.

Source: OffsetSeqLog and CommitLog of Spark's structured streaming.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rmq_store.errors import InvalidArgumentError, from_os_error
from spark_source.streaming.offsets import StorePlace, from_dict

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
            found = json.loads(line)
        except ValueError:
            continue  # another source, or "-" for one that gave nothing
        if isinstance(found, dict) and "stores" in found:
            places.append(from_dict(found))
    if not places:
        raise _refused(
            folder,
            "this query does not read a stream of rmqstore",
            "Give the checkpoint folder of a query that does",
        )
    return tuple(places)


def _refused(path: str, reason: str, advice: str) -> InvalidArgumentError:
    return InvalidArgumentError(path, reason=reason, advice=advice)
