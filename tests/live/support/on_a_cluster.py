"""What a driver asks of a cluster, by paths that are relative to its folder. Prints each answer as JSON.

`python -m tests.live.support.on_a_cluster MASTER`, in a folder with `store` and `broker.conf`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from rmq_store.cli.main import main as rmqstore

RAW = {"unwrapBatches": "false"}
JOBS = {
    "export": ("export", "store", "--to", "exported", "--topic", "orders"),
    "replay": ("replay", "store", "--to", "replayed", "--topic", "orders"),
    "replay to Parquet": ("replay", "store", "--to-parquet", "deep/parquet", "--topic", "orders"),
}
COMMANDS = {
    "verify": ("verify", "store"),
    "rebuild": ("rebuild", "store", "--to", "rebuilt", "--verify"),
}


def main(master: str) -> None:
    """Ask, and print the name and the answer of each question."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
    }
    spark = SparkSession.builder.master(master).config(map={**settings}).getOrCreate()
    for name, ask in _questions(spark, master):
        try:
            with redirect_stdout(sys.stderr):
                answer: Any = ask()
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps([name, answer]), flush=True)


def _questions(spark: SparkSession, master: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    def read(path: str | list[str] | None = "store", **options: str) -> DataFrame:
        return spark.read.format("rmqstore").options(**RAW, **options).load(path)

    yield "load", lambda: read().count()
    yield "broker.conf", lambda: read(brokerConf="broker.conf").count()
    yield "pattern", lambda: read("st*").count()
    yield "list", lambda: read(["store"]).count()
    both = {"stores": '{"b": "store"}', "brokerConf": '{"b": "broker.conf"}'}
    yield "stores", lambda: read(None, **both).count()
    yield "commitlog", lambda: read(source="commitlog").count()
    for table in ("queues", "usage", "damage"):
        yield f"table {table}", lambda table=table: read(table=table).count()  # type: ignore[misc]
    yield "diff", lambda: read(None, table="diff", stores='{"a": "store", "b": "store"}').count()
    yield "stream", lambda: _stream(spark)
    yield "write", lambda: _write(read(topic="orders"))
    yield "written", lambda: read("written").count()
    engine = ("--engine", "spark", "--master", master)
    for name, (job, *words) in JOBS.items():
        module = import_module(f"rmqstore_jobs.{job}")
        yield name, lambda m=module, w=words: m.main([*w, *engine])  # type: ignore[misc]
    for name, words_of_command in COMMANDS.items():
        yield name, lambda words=words_of_command: _command(*words, *engine)  # type: ignore[misc]


def _stream(spark: SparkSession) -> int:
    options = {"topic": "orders", "startingOffsets": "earliest"}
    stream = spark.readStream.format("rmqstore").options(**options).load("store").writeStream
    kept = stream.option("checkpointLocation", os.path.abspath("checkpoint"))
    query = kept.format("memory").queryName("orders").trigger(availableNow=True).start()
    query.awaitTermination()
    return spark.table("orders").count()


def _write(frame: DataFrame) -> None:
    frame.select("topic", "body").write.format("rmqstore").mode("append").save("written")


def _command(*words: str) -> Any:
    sys.argv = ["rmqstore", *words]
    try:
        rmqstore()
    except SystemExit as ended:
        return ended.code


if __name__ == "__main__":
    main(sys.argv[1])
