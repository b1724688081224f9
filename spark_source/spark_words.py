"""Errors in the words of Spark, and without a Python traceback before them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from pyspark import TaskContext

from rmq_store.errors import StoreError, speak_as
from rmq_store.heap_settings import settle_worker
from rmq_store.scan.read_task import TO_PASS_DAMAGE

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


def in_spark_words(text: str) -> str:
    """An advice, with options of the source in place of arguments of the library."""
    return text.replace("Read with on_damage to skip it", TO_PASS_DAMAGE)


def settle_reading_worker() -> None:
    """Settle a worker of Spark that only reads: its memory, and the words of its errors."""
    settle_worker()
    if TaskContext.get() is not None:  # not a program that reads in its own process
        speak_as(in_spark_words)
