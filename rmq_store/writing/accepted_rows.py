"""Append the rows of a batch that a store accepts, and say why it refuses others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rmq_store.errors import InvalidArgumentError, InvalidMessageError
from rmq_store.format.array_types import Ints
from rmq_store.writing.append_messages import AppendResult, nothing_appended
from rmq_store.writing.store_writer import StoreWriter

Refusal = InvalidArgumentError | InvalidMessageError


class AcceptedRows(NamedTuple):
    """The numbers of the rows that were appended, their places, and each refused row with the reason."""

    rows: Ints
    places: AppendResult
    refused: list[tuple[int, Refusal]]


def append_accepted(store: StoreWriter, batch: pa.RecordBatch) -> AcceptedRows:
    """Append the rows of a store that `store` accepts, in order."""
    parts = [nothing_appended()]
    refused = list(
        refused_rows(batch, lambda part: parts.append(store.append_batch(part, copied=True)))
    )
    rows = np.setdiff1d(np.arange(batch.num_rows), [row for row, _ in refused])
    columns = ([getattr(part, name.name) for part in parts] for name in fields(AppendResult))
    return AcceptedRows(rows, AppendResult(*map(np.concatenate, columns)), refused)


def refused_rows(
    batch: pa.RecordBatch, take: Callable[[pa.RecordBatch], Any]
) -> Iterator[tuple[int, Refusal]]:
    """Pass all rows to `take`, in order. Yields each refused row with the reason.

    `take` refuses a whole batch if one message is invalid, before it writes a byte. So the batch is
    halved until the message is alone.
    """
    if batch.num_rows == 0:
        return
    try:
        take(batch)
    except (InvalidArgumentError, InvalidMessageError) as error:
        if batch.num_rows == 1:
            yield 0, error
            return
        middle = batch.num_rows // 2
        yield from refused_rows(batch.slice(0, middle), take)
        for row, why in refused_rows(batch.slice(middle), take):
            yield middle + row, why
