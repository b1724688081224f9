"""Run by a Python with Delta: exports and reads as lines of JSON on stdin ask for them.

With arguments WHERE and the words of a command line, that command, killed with SIGKILL at WHERE.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrameWriter, SparkSession

from rmq_store import StoreError
from rmqstore_jobs import export
from rmqstore_jobs.exporting.delta import DeltaTarget, with_delta
from rmqstore_jobs.running.spark_engine import builder_for


def answer(spark: SparkSession, question: dict[str, Any]) -> dict[str, Any]:
    """What one line asks for."""
    if "table" in question:
        frame = spark.read.format("delta").load(question["table"])
        names = ("topic", "queueId", "queueOffset", "hex(body) body", "cast(day AS string) day")
        return {"rows": [row.asDict() for row in frame.selectExpr(*names).collect()]}
    if "checkpoint" in question:
        # As Delta does now and then by itself, before it cleans up its log.
        jvm = spark.sparkContext._jvm
        assert jvm is not None
        logs = jvm.org.apache.spark.sql.delta.DeltaLog
        logs.forTable(spark._jsparkSession, question["checkpoint"]).checkpoint()
        logs.clearCache()
        return {}
    if "sql" in question:
        spark.sql(question["sql"]).collect()
        return {}
    try:
        found = export.run(spark, export.ExportSpec(**question["spec"]))
    except StoreError as error:
        return {"refused": error.code, "message": str(error)}
    reported: dict[str, Any] = json.loads(found.to_json())
    return reported


def serve() -> None:
    """Until stdin ends. The JVM's output must not mix with the answers."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    builder = with_delta(builder_for("tests", "local[2]"))
    # For little tables: else each look at one is fifty tasks.
    for name in ("spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions"):
        builder = builder.config(name, 2)
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    for line in sys.stdin:
        print(json.dumps(answer(spark, json.loads(line))), file=out, flush=True)
    spark.stop()


def kill_at(where: str, words: list[str]) -> int:
    """The command, killed as it begins to write, in the middle of writing, or once Delta has it."""
    target = Path(words[words.index("--to") + 1])

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def die_at_first_file() -> None:
        while not any(target.glob("topic=*/day=*/*.parquet")):
            time.sleep(0.005)
        die()

    if where == "begin":
        setattr(DataFrameWriter, "save", die)  # noqa: B010
    elif where == "middle":
        threading.Thread(target=die_at_first_file, daemon=True).start()
    else:
        setattr(DeltaTarget, "_wave_of", die)  # noqa: B010
    return export.main(words)


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(kill_at(sys.argv[1], sys.argv[2:]))
    serve()
