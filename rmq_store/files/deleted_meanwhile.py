"""Files that a broker deletes while somebody opens its store."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from rmq_store.errors import MissingFileError
from rmq_store.format.layout import SEGMENT_NAME_DIGITS

_TIMES = 5
_T = TypeVar("_T")


def again_if_expired(look: Callable[[], _T]) -> _T:
    """`look()`, done again if a file that it listed was deleted before it could open it.

    A broker deletes its oldest files one after the other, at any time. Raises what `look` raises, the
    MissingFileError too if that happens again and again.
    """
    for _ in range(_TIMES):
        try:
            return look()
        except MissingFileError as error:
            if not _was_deleted(str(error.path)):
                raise
    return look()


def _was_deleted(path: str) -> bool:
    name = os.path.basename(path)
    listed = len(name) == SEGMENT_NAME_DIGITS and name.isascii() and name.isdigit()
    return listed and not os.path.exists(path)
