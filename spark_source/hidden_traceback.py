"""Errors that Spark shows without a Python traceback before them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from rmq_store.errors import StoreError

_Error = TypeVar("_Error", bound=StoreError)


def without_traceback(error: _Error) -> _Error:
    """The error, which Spark then shows without a traceback before it.

    PySpark's worker puts the traceback first, so the sentence that matters would be the last of
    many lines. It leaves the traceback out if it finds this variable. A worker ends after an error,
    so no other code is meant by it.
    """
    if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    return error.with_traceback(None)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise our errors `without_traceback`."""
    try:
        yield
    except StoreError as error:
        raise without_traceback(error) from None
