"""The engine that answers a question on Spark: executors work on shares of a store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rmq_store.questions.answer_by_shares import (
    Answer,
    Engine,
    InProcess,
    OnProgress,
    Part,
    Question,
    Share,
    StoreSource,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS_A_CORE = 8


def engine_of(spark: SparkSession | None, tasks_a_core: int = _TASKS_A_CORE) -> Engine:
    """The engine for a session of Spark; without one, this process."""
    return InProcess() if spark is None else SparkEngine(spark, tasks_a_core)


def cores_of(spark: SparkSession | None) -> int:
    """The number of shares that the engine works on at the same time."""
    return 1 if spark is None else spark.sparkContext.defaultParallelism


def submitted() -> bool:
    """Whether spark-submit started this process, and so its JVM with master and jars."""
    return "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ


class SparkEngine:
    """Sends shares to executors, `tasks_a_core` per core at a time, and returns their parts.

    So this process holds only the parts in progress, and a job can stop between them.
    """

    def __init__(self, spark: SparkSession, tasks_a_core: int = _TASKS_A_CORE) -> None:
        self._context = spark.sparkContext
        self._together = tasks_a_core * self._context.defaultParallelism

    def run(
        self,
        source: StoreSource,
        question: Question[Share, Part, Answer],
        shares: Sequence[Share],
        progress: OnProgress,
    ) -> Iterator[Part]:
        """The part of each share, in order. Raises the errors of the work, wrapped by Spark."""
        from rmqstore_jobs.running.spark_session import ship_jobs

        ship_jobs()
        for first in range(0, len(shares), self._together):
            sent = shares[first : first + self._together]
            parts = (
                self._context.parallelize(sent, len(sent)).map(_task(source, question)).collect()
            )
            for share, part in zip(sent, parts, strict=True):
                progress(question.weight(share))
                yield part


def _task(source: StoreSource, question: Question[Share, Part, Answer]) -> Callable[[Share], Part]:
    def work(share: Share) -> Part:
        with source.open() as store:
            return question.work(store, share, _ignore)

    return work


def _ignore(count: int) -> None:
    return
