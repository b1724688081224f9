"""`make demo`: replay a store that a real broker wrote through local Spark, and show the result."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rmq_store.errors import printable
from rmqstore_jobs.replay import run
from rmqstore_jobs.replaying.replay_question import ORIGIN_PREFIX
from rmqstore_jobs.replaying.replay_spec import ReplaySpec
from rmqstore_jobs.running.spark_engine import builder_for

CHECKOUT = Path(__file__).resolve().parent.parent
PYTHON = os.path.relpath(sys.prefix, CHECKOUT) + "/bin/python"  # as one types it in the checkout
GOLDEN = "clean-5.5.0"
BAR_WIDTH = 24
SAMPLE_ROWS = 6
BODY_SHOWN = 32


def main() -> int:
    """Unpack the store, replay it and show the result. Returns the exit code."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    out = CHECKOUT / "demo-out"
    source = unpack(out)
    release = json.loads((source.parent / "golden.json").read_text("utf-8"))["release"]
    console.print(_welcome(release))
    spark = session()
    spec = ReplaySpec(
        source=os.path.relpath(source),
        to_store=os.path.relpath(out / "store"),
        to_parquet=os.path.relpath(out / "parquet"),
        broker_conf=os.path.relpath(source.parent / "broker.conf"),
        target_conf=os.path.relpath(source.parent / "broker.conf"),
    )
    report = run(spark, spec)
    report.show()
    replayed = spark.read.format("rmqstore").option("unwrapBatches", "false")
    records = replayed.load(str(out / "store"))
    console.print(by_topic(records))
    console.print(some_messages(records))
    console.print(_next_steps(spec))
    spark.stop()
    return 0 if report.ok else 1


def unpack(out: Path) -> Path:
    """Empty `out` and unpack the golden store into it. Returns the store's root."""
    shutil.rmtree(out, ignore_errors=True)
    (out.parent / (out.name + ".replay.json")).unlink(missing_ok=True)
    with tarfile.open(CHECKOUT / "tests" / "golden" / f"{GOLDEN}.tar.xz") as archive:
        archive.extractall(out, filter="data")
    return out / GOLDEN / "store"


def session() -> SparkSession:
    """A local Spark session that logs only errors."""
    builder = builder_for("demo", "local[*]").config("spark.ui.enabled", "false")
    return builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()


def _welcome(release: str) -> Panel:
    return Panel(
        f"The files of an Apache RocketMQ broker, release [bold]{release}[/], read without a "
        "broker and without its Java:\nCommitLog and ConsumeQueue to Arrow to Spark, "
        "into a [bold]new store[/] and into [bold]Parquet[/].",
        title="rmqstore",
        border_style="cyan",
    )


def by_topic(records: DataFrame) -> Table:
    """What fills the store: records, queues and bytes of every topic, largest first.

    Records as the replay counts them: an inner batch is one, with one size.
    """
    stored = F.sum("storeSize").alias("stored")
    rows = (
        records.groupBy("topic")
        .agg(
            F.count(F.lit(1)).alias("records"),
            F.count_distinct("queueId").alias("queues"),
            F.count_distinct("tags").alias("tags"),
            F.count_if((F.col("sysFlag") % 2) == 1).alias("compressed"),
            stored,
        )
        .orderBy(F.desc("stored"))
        .collect()
    )
    table = Table(title="the new store, read back", title_justify="left")
    table.add_column("topic", style="bold")
    for name in ("records", "queues", "tags", "compressed", "bytes"):
        table.add_column(name, justify="right")
    table.add_column("share of the bytes")
    largest = max((row.stored for row in rows), default=1)
    for row in rows:
        numbers = (row.records, row.queues, row.tags, row.compressed, row.stored)
        bar = "█" * max(1, round(BAR_WIDTH * row.stored / largest))
        table.add_row(
            Text(printable(row.topic)), *(f"{n:,}" for n in numbers), Text(bar, style="cyan")
        )
    return table


def some_messages(messages: DataFrame) -> Table:
    """A few messages of the new store, and their positions in the old one."""
    origin = F.col("properties")
    rows = (
        messages.where("topic = 'orders' AND tags IS NOT NULL AND keys IS NOT NULL")
        .where(F.is_valid_utf8(F.col("body").cast("string")))
        .orderBy("commitLogOffset")
        .limit(SAMPLE_ROWS)
        .select(
            F.concat_ws("/", "topic", "queueId", "queueOffset").alias("place"),
            "tags",
            "keys",
            F.date_format("bornTimestamp", "HH:mm:ss.SSS").alias("born"),
            F.col("body").cast("string").alias("body"),
            F.concat_ws(
                "/",
                *(
                    origin[ORIGIN_PREFIX + part]
                    for part in ("BROKER", "TOPIC", "QUEUE_ID", "QUEUE_OFFSET")
                ),
            ).alias("origin"),
        )
        .collect()
    )
    table = Table(title="a few orders, and where they came from", title_justify="left")
    styles: dict[str, dict[str, Any]] = {
        "place": {"style": "bold"},
        "tag": {"style": "magenta"},
        "keys": {},
        "born": {"style": "dim"},
        "body": {"style": "green", "no_wrap": True},
        "origin": {"style": "dim"},
    }
    for name, style in styles.items():
        table.add_column(name, **style)
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> Sequence[Text]:
    body = row.body if len(row.body) <= BODY_SHOWN else row.body[: BODY_SHOWN - 1] + "…"
    return [
        Text(printable(cell))
        for cell in (row.place, row.tags, row.keys, row.born, body, row.origin)
    ]


def _next_steps(spec: ReplaySpec) -> Panel:
    return Panel(
        Text(
            f"new store   {spec.to_store}\n"
            f"Parquet     {spec.to_parquet}\n"
            f"journal     {spec.to_store}.replay.json\n\n"
            f"try         {PYTHON} jobs/replay.py {spec.source} \\\n"
            "                --topic orders --tag cancelled --to demo-out/cancelled\n"
            f"or          {PYTHON} jobs/replay.py --help"
        ),
        title="files of this demo",
        border_style="cyan",
    )


if __name__ == "__main__":
    sys.exit(main())
