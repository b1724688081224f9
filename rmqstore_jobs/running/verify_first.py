"""`--verify` of a job: the verdict on its store before it reads a message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from rmq_store.errors import DataLossError
from rmq_store.questions.answer_by_shares import ask, processes_for
from rmq_store.questions.verify import VerifyQuestion
from rmq_store.text.progress import Progress
from rmq_store.verify.verdict import Verdict
from rmqstore_jobs.running.spark_engine import SparkEngine
from rmqstore_jobs.running.store_selection import pinned_store
from spark_source.options.definitions import FAILFAST

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmqstore_jobs.running.result_tables import JobResult

_Result = TypeVar("_Result", bound="JobResult")
_OF_STORE = {"brokerName": "broker_name", "brokerConf": "broker_conf"}


def verdict_first(spark: SparkSession | None, given: Mapping[str, Any]) -> Verdict:
    """The verdict on the store of a job, by its options.

    Raises DataLossError for a damaged one, unless the job leaves damage out.
    """
    options = {name: given.get(name) or given.get(other) for name, other in _OF_STORE.items()}
    options["storageOptions"] = given.get("storageOptions")
    pinned = pinned_store(given["store"], {k: v for k, v in options.items() if v is not None})
    with pinned.open() as store, Progress("verify") as progress:
        engine = processes_for(store) if spark is None else SparkEngine(spark)
        verdict = ask(VerifyQuestion(), pinned, engine, progress=progress).verdict
    if verdict.lacks_messages and (given.get("mode") or FAILFAST).upper() == FAILFAST:
        helps = "" if verdict.help is None else f": {verdict.help.command}"
        raise DataLossError(
            given["store"],
            reason=f"--verify: the store is {verdict.sentence()}",
            advice=f"rmqstore verify says more{helps}. Without --verify the job reads what it can",
        )
    return verdict


def with_verdict(result: _Result, verdict: Verdict) -> _Result:
    """The result of a job whose store was verified; losses are a problem of it."""
    sentence = verdict.sentence()
    source = replace(result.source, verified=sentence)
    if not verdict.lacks_messages:
        return replace(result, source=source)  # type: ignore[type-var]
    problems = (*result.problems, f"the store is {sentence}")
    return replace(result, source=source, problems=problems, ok=False)  # type: ignore[type-var]
