"""A warning for long reads where the loops run interpreted."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from rmq_store import loops
from rmq_store.arrow.column_values import Rows

LOG = logging.getLogger("rmqstore")

MANY_MESSAGES = 5_000
"""A read of more messages takes a second and more, where compiled loops take some milliseconds."""

_looked: list[int] = []  # messages of the read that looked whether the loops are compiled


def watched(pieces: Iterable[Rows]) -> Iterator[Rows]:
    """The rows of a read. If they are many and loops run interpreted, that is logged, once a process."""
    messages = 0
    for rows in pieces:
        messages += len(rows)
        if messages > MANY_MESSAGES and not _looked:
            _looked.append(messages)
            if not loops.compiled():
                LOG.warning(
                    "reads are some hundred times slower than they could be, because loops run "
                    "interpreted: %s",
                    loops.why_interpreted(),
                )
        yield rows
