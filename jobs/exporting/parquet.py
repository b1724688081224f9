"""Export to Parquet: write to a staging folder, compute checksums, add to the manifest, then
move."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from jobs.exporting.manifest import Manifest
from jobs.exporting.rows import DAY, TOPIC
from jobs.exporting.step import ExportedFile, Wave
from jobs.running.provenance import sum_of
from spark_source.spark_types import CORRUPT


class ParquetTarget:
    """A folder of Parquet files, partitioned by topic and day."""

    def __init__(self, spark: SparkSession, manifest: Manifest) -> None:
        self.spark, self.manifest = spark, manifest

    def settle(self) -> None:
        """Do nothing: opening the manifest has completed what an interrupted process left."""

    def write(self, rows: DataFrame, wave: Wave) -> Wave:
        """Write a wave and add it to the manifest. Returns the wave with its files."""
        staging = self.manifest.staging
        rows.write.mode("overwrite").partitionBy(TOPIC, DAY).parquet(str(staging))
        files = summed(self.spark, staging, self._named(staging))
        done = replace(wave, rows=sum(file.rows for file in files), files=files)
        self.manifest.commit(done)
        return done

    def _named(self, staging: Path) -> list[str]:
        """Rename the files of a wave to their final names."""
        number = self.manifest.next_number
        paths = []
        for i, path in enumerate(sorted(staging.rglob("*.parquet"))):
            final = path.with_name(f"{number:06d}-{i:05d}.parquet")
            path.rename(final)
            paths.append(str(final))
        return paths


def summed(spark: SparkSession, root: Path, paths: Sequence[str]) -> tuple[ExportedFile, ...]:
    """Rows, bytes and SHA-256 of Parquet files below `root`, computed by executors."""
    if not paths:
        return ()
    tasks = min(len(paths), 4 * spark.sparkContext.defaultParallelism)
    top = str(root)
    shared = spark.sparkContext.parallelize(paths, tasks)
    return tuple(shared.map(lambda path: summed_file(path, top)).collect())


def summed_file(path: str, root: str) -> ExportedFile:
    """Rows, bytes and SHA-256 of one file. Flushes it to the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    rows = pq.read_metadata(path).num_rows
    found = sum_of(path)
    return ExportedFile(os.path.relpath(path, root), rows, found.size, found.sha256)


def damage_written(spark: SparkSession, paths: Sequence[str]) -> int:
    """The number of rows about damage in Parquet files, counted by executors."""
    if not paths:
        return 0
    tasks = min(len(paths), 4 * spark.sparkContext.defaultParallelism)
    return int(spark.sparkContext.parallelize(paths, tasks).map(damaged_rows).sum())


def damaged_rows(path: str) -> int:
    """The number of rows in one file with a `corruptRecord`."""
    said = pq.ParquetFile(path).read(columns=[CORRUPT]).column(CORRUPT)
    return int(len(said) - said.null_count)
