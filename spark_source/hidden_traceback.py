"""Errors that Spark shows without a Python traceback before them."""

from __future__ import annotations

import os
from typing import TypeVar

from rmq_store.errors import StoreError

_Error = TypeVar("_Error", bound=StoreError)


def without_traceback(error: _Error) -> _Error:
    """The error, which Spark then shows without a traceback before it.

    PySpark's worker puts the traceback first, so the sentence that matters would be the last of
    many lines. It leaves the traceback out if it finds this variable. The worker is one that plans:
    it lives for this query alone, and Spark ends it after an error.
    """
    if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    return error.with_traceback(None)
