"""Advice of errors in the words of Spark: the library names its own arguments."""

from __future__ import annotations

from pyspark import TaskContext

from rmq_store.errors import speak_as
from rmq_store.heap_settings import settle_worker

_SPARK = {
    "Read with on_damage to skip it": "mode=PERMISSIVE returns a row about it, "
    "mode=DROPMALFORMED leaves it out"
}


def in_spark_words(text: str) -> str:
    """An advice, with options of the source in place of arguments of the library."""
    for phrase, words in _SPARK.items():
        text = text.replace(phrase, words)
    return text


def settle_reading_worker() -> None:
    """Settle a worker of Spark that only reads: its memory, and the words of its errors."""
    settle_worker()
    if TaskContext.get() is not None:  # not a program that reads in its own process
        speak_as(in_spark_words)
