"""The engine that answers a question on Spark: executors work on shares of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pyspark.sql import SparkSession

from jobs.running.spark_session import ship_jobs
from rmq_store.questions.engine import Answer, OnProgress, Part, Question, Share, StoreSource

_TASKS_A_CORE = 8


class SparkEngine:
    """Sends shares to executors, a few per core at a time, and returns their parts.

    So this process holds only the parts in progress, and a job can stop between them.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    def run(
        self,
        source: StoreSource,
        question: Question[Share, Part, Answer],
        shares: Sequence[Share],
        progress: OnProgress,
    ) -> Iterator[Part]:
        """The part of each share, in order. Raises the errors of the work, wrapped by Spark."""
        ship_jobs()
        together = _TASKS_A_CORE * self._context.defaultParallelism
        for first in range(0, len(shares), together):
            sent = shares[first : first + together]
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
