"""Describe how a job ended early, in one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from rmq_store.cli.command import EngineFailedError
from rmq_store.errors import InvalidArgumentError, spoken
from rmq_store.files.journal import JournalError

_DAMAGE = re.compile(
    r"\[RMQSTORE_(CORRUPT_[A-Z]+|MISSING_FILE|BODY)\]|the end of the log is lost: "
)
_OF_QUEUES = re.compile(r"\[RMQSTORE_CORRUPT_QUEUE\]|\[RMQSTORE_MISSING_FILE\] .*?consumequeue/")
_REBUILT = (
    "a rebuilt store (`rmqstore rebuild STORE --to NEW` makes queues from the log, and keeps groups and "
    "offsets)"
)
_SALVAGED = "a salvaged store (`rmqstore salvage STORE --to NEW` copies the intact messages into a new store)"


class AlreadyDoneError(JournalError):
    """The job was done before: its target has what it wrote."""

    code = "RMQSTORE_ALREADY_DONE"


def is_damage(reason: str) -> bool:
    """Whether the reason is damage of a store, so that the same command would fail again."""
    return _DAMAGE.search(reason) is not None


def reason_of(error: Exception) -> str:
    """Our own error text if Spark's traceback contains one, else the first lines."""
    if type(error).__name__ in ("Py4JError", "Py4JNetworkError"):
        return (
            "Spark's JVM ended, and its log says why; if memory ran out, give it more "
            "(spark.driver.memory) or a smaller --wave-bytes"
        )
    lines = str(error).splitlines()
    ours = [line.partition("[RMQSTORE_")[2] for line in lines if "[RMQSTORE_" in line]
    return spoken(f"[RMQSTORE_{ours[-1]}") if ours else " ".join(lines[:3])


@contextmanager
def spark_errors_said(what: str = "") -> Iterator[None]:
    """Make an error of Spark, or of its executors, an EngineFailedError that begins with `what`."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("pyspark", "py4j"):
            raise
        raise EngineFailedError(what + reason_of(error)) from None


def refuse_if(
    wrong: object, reason: str, advice: str | None = None, *, found: object = None
) -> None:
    """Raise InvalidArgumentError for what is asked of a job, if it is `wrong`."""
    if wrong:
        raise InvalidArgumentError(reason=reason, actual=found, advice=advice)


def failure(
    error: Exception, instead: str = "replay into a new target, from", otherwise: str = ""
) -> str:
    """What ended a job. For damage, what to do `instead`, because another run would fail again."""
    reason = reason_of(error)
    if not is_damage(reason):
        return reason + otherwise
    # Where queues are damaged, the log may be whole.
    readable = _REBUILT if _OF_QUEUES.search(reason) else _SALVAGED
    return f"{reason}. The same command would fail again: {instead} {readable}"
