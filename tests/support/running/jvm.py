"""How the JVMs of tests start. `python -m tests.support.running.jvm` makes the archive that they share.

The JVM of a test lives for seconds. It would spend half of them on compiling what it runs: its first
compiler is enough, and one thread for its garbage. Half of the rest goes into loading Spark's
classes, which an archive of them spares. An archive that is of another JDK or Spark is ignored.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
LONGEST_END_S = 120  # of a JVM that writes its archive as it ends
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def set_options() -> None:
    """For every Spark that this process, or one that it starts, will start from now on."""
    # Without the log the JVM does not say, on stdout, that it has ignored an archive.
    known = ARCHIVE.exists() and ARCHIVE.stat().st_size > 0
    shared = f'-XX:SharedArchiveFile="{ARCHIVE}" -Xlog:disable' if known else ""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{SHORT_LIVED} {shared}")
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", SHORT_LIVED)


def make_archive() -> None:
    """Run what tests do in Spark, and keep the classes that were loaded."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from tests.support.stores import make_store

    # Beside the archive, which it becomes at once and whole.
    new = ARCHIVE.with_suffix(".new")
    new.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = (
        f'{SHORT_LIVED} -XX:ArchiveClassesAtExit="{new}" -Xlog:disable'
    )
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/store"
        make_store(Path(store), 100)
        session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        spark = session.config("spark.ui.showConsoleProgress", "false").getOrCreate()
        frame = spark.read.format("rmqstore").load(store)
        frame.groupBy("topic").count().collect()
        frame.where("queueId = 1").select("body", "properties").collect()
        frame.write.parquet(f"{folder}/parquet")
        spark.read.parquet(f"{folder}/parquet").count()
        spark.stop()
        gateway = SparkContext._gateway
        assert gateway is not None
        process = gateway.proc
        gateway.shutdown()
        process.stdin.close()  # which is how it knows that we have gone
        try:
            process.wait(LONGEST_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            new.unlink(missing_ok=True)  # half of one
    if new.exists():
        new.replace(ARCHIVE)
    else:  # an empty one, not to try again in each run
        print("This JVM makes no archive of classes; each Spark loads its own.", file=sys.stderr)
        ARCHIVE.touch()


if __name__ == "__main__":
    make_archive()
