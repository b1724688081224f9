"""The same rows through Spark Connect, with spark-submit, and while the store is written to.

Each runs in processes of its own; a cluster is in tests/live.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from tests.support.checkout import CHECKOUT
from tests.support.golden import messages_in, unpack, user_topic
from tests.support.running.child import run_python

pytestmark = pytest.mark.campaign

SPARK_HOME = Path(pyspark.__file__).parent
NAME = "clean-5.5.0"
TIMEOUT_S = 240


def environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **more,
    }


def run_script(script: str, folder: Path, *arguments: str, **more: str) -> dict[str, int]:
    """What a script prints as JSON behind RESULT."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    how = {"env": environment(**more), "timeout": TIMEOUT_S}
    done = run_python(str(path), *arguments, cwd=folder, **how)
    assert done.returncode == 0, done.stderr[-4000:]
    return result_of(done.stdout)


def result_of(output: str) -> dict[str, int]:
    (line,) = re.findall(r"^RESULT (.*)$", output, re.MULTILINE)
    found: dict[str, int] = json.loads(line)
    return found


ASK = """
import json

def ask(spark, path):
    frame = spark.read.format("rmqstore").option("maxBytesPerPartition", "100k").load(path)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW messages "
        f"USING rmqstore OPTIONS (path '{path}', subscribe 'orders')"
    )
    (row,) = spark.sql("SELECT count(*) AS n FROM messages WHERE queueId < 2").collect()
    found = {
        "all": frame.count(),
        "orders": frame.where("topic = 'orders'").count(),
        "in view": row["n"],
        "queues": spark.read.format("rmqstore").option("table", "queues").load(path).count(),
    }
    print("RESULT " + json.dumps(found), flush=True)
"""


def expected(store: Path) -> dict[str, int]:
    from tests.support.golden import GoldenStore

    truth = GoldenStore(store.parent).truth
    orders = [r for r in truth if r["topic"] == "orders"]
    queues = sum(
        1
        for kind in ("consumequeue", "batchconsumequeue")
        for topic in (store / kind).iterdir()
        for _ in topic.iterdir()
    )
    return {
        "all": sum(messages_in(r) for r in truth if user_topic(r)),
        "orders": len(orders),
        "in view": sum(r["queueId"] < 2 for r in orders),
        "queues": queues,
    }


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(unpack(NAME, tmp_path).path)


@contextmanager
def daemon(
    folder: Path, name: str, *command: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process that is ended again; its output goes to a file."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield process, log
        finally:
            process.terminate()
            process.wait(60)


def wait_for(pattern: str, process: subprocess.Popen[bytes], log: Path) -> str:
    """The first match in what a process says; its end is an error."""
    with log.open("rb") as output:
        said = ""
        while True:
            said += output.read().decode("utf-8", "replace")
            match = re.search(pattern, said)
            if match:
                return match[1]
            assert not _ended(process), said[-4000:]


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has; asked at some leisure, for the process needs the cores more than we do."""
    try:
        process.wait(0.1)
    except subprocess.TimeoutExpired:
        return False
    return True


def test_spark_connect(store: Path, tmp_path: Path) -> None:
    """A server, and a client that knows no more than its port."""
    submit = str(SPARK_HOME / "bin" / "spark-submit")
    server = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer")
    conf = ("spark.ui.enabled=false", "spark.connect.grpc.binding.port=0", "spark.log.level=INFO")
    settings = [word for one in conf for word in ("--conf", one)]
    command = (submit, "--master", "local[2]", *server, *settings, "spark-internal")
    with daemon(tmp_path, "connect", *command) as (process, log):
        port = wait_for(r"Connect server started at: \S*?:(\d+)", process, log)
        script = ASK + textwrap.dedent(
            """
            import sys
            from pyspark.sql import SparkSession
            spark = SparkSession.builder.remote(f"sc://127.0.0.1:{sys.argv[2]}").getOrCreate()
            assert "connect" in type(spark).__module__
            ask(spark, sys.argv[1])
            spark.stop()
            """
        )
        assert run_script(script, tmp_path, str(store), port) == expected(store)


def test_spark_submit_with_the_packages_in_a_zip(store: Path, tmp_path: Path) -> None:
    """Under a Python that does not have rmqstore installed."""
    archive = tmp_path / "rmqstore.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        for path in (*CHECKOUT.glob("rmq_store/**/*.py"), *CHECKOUT.glob("spark_source/**/*.py")):
            zipped.write(path, path.relative_to(CHECKOUT))
        zipped.write(CHECKOUT / "pyspark_rmqstore.py", "pyspark_rmqstore.py")
    # Without `site` there are no .pth files, which is how an editable install is found.
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\\nexec {sys.executable} -S "$@"\\n'.replace("\\n", "\n"))
    bare.chmod(0o755)
    script = tmp_path / "submitted.py"
    script.write_text(
        ASK
        + textwrap.dedent(
            """
            import sys
            from pyspark.sql import SparkSession
            from spark_source.source import RmqStoreSource
            import rmq_store
            assert ".zip" in rmq_store.__file__, rmq_store.__file__
            spark = SparkSession.builder.getOrCreate()
            spark.dataSource.register(RmqStoreSource)
            ask(spark, sys.argv[1])
            spark.stop()
            """
        )
    )
    site = str(SPARK_HOME.parent)
    done = subprocess.run(
        [
            *(SPARK_HOME / "bin" / "spark-submit", "--master", "local[2]"),
            *("--conf", "spark.ui.enabled=false", "--py-files", archive, script, store),
        ],
        cwd=tmp_path,
        env=environment(PYSPARK_PYTHON=str(bare), PYSPARK_DRIVER_PYTHON=str(bare), PYTHONPATH=site),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert result_of(done.stdout) == expected(store)


def test_a_store_that_another_process_writes_to(store: Path, tmp_path: Path) -> None:
    """Eight loads: each self-join and count agrees with itself, no row twice, none torn."""
    writer = tmp_path / "writer.py"
    writer.write_text(
        textwrap.dedent(
            """
            import sys, time
            from rmq_store import MessageStore
            with MessageStore.append_to(sys.argv[1]) as store:
                number = 0
                print("writing", flush=True)
                while True:
                    body = b"%d" % number * 20
                    store.append({"topic": "orders", "queueId": number % 4, "body": body})
                    number += 1
                    time.sleep(0.002)  # the pace of a broker that is not busy
            """
        )
    )
    script = """
    import json, sys
    from pyspark.sql import SparkSession, functions as F
    spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2").getOrCreate())
    counts = []
    for _ in range(8):
        rows = (spark.read.format("rmqstore").option("topic", "orders")
            .option("maxBytesPerPartition", "1m").load(sys.argv[1])
            .select("queueId", "queueOffset", F.length("body").alias("n")))
        joined = rows.join(rows.withColumnRenamed("n", "m"), ["queueId", "queueOffset"])
        pairs, torn = joined.agg(F.count("*"), F.count_if(F.expr("n <> m"))).first()
        one = rows.agg(F.count("*"), F.countDistinct("queueId", "queueOffset")).first()
        assert torn == 0 and pairs == one[0] == one[1], (pairs, torn, one)
        counts.append(pairs)
    assert counts == sorted(counts) and counts[-1] > counts[0], counts
    print("RESULT " + json.dumps({"first": counts[0], "last": counts[-1]}), flush=True)
    """
    with daemon(tmp_path, "writer", sys.executable, str(writer), str(store)) as (process, log):
        wait_for("(writing)", process, log)
        found = run_script(script, tmp_path, str(store))
        assert process.poll() is None, log.read_text()
    print(f"\n{found}")
