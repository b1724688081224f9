"""What went wrong in Spark, in one sentence."""

from __future__ import annotations

from py4j.protocol import Py4JError, Py4JJavaError


def reason_of(error: Exception) -> str:
    """Our own sentence where Spark has wrapped it in a traceback, else the first lines."""
    if isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError):
        return (
            "Spark's JVM is gone, and its log says why; if memory ran out, give it more "
            "(spark.driver.memory) or a smaller --wave-bytes"
        )
    lines = str(error).splitlines()
    ours = [line.partition("[RMQSTORE_")[2] for line in lines if "[RMQSTORE_" in line]
    return f"[RMQSTORE_{ours[-1]}" if ours else " ".join(lines[:3])
