"""Run the examples of pages: `python -m tests.support.pages.run_examples FOLDER PAGE...`.

One process for all pages, so that their examples share one Spark. Each page finds a real broker's store
in `store`, and no files and views of the pages before.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from unittest.mock import patch

from pyspark.sql import SparkSession

from tests.support.golden import unpack

EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def examples(page: Path) -> str:
    """All examples of a page as one script; empty without one."""
    return "\n".join(EXAMPLE.findall(page.read_text("utf-8")))


def run(page: Path) -> None:
    """Run the examples of a page from top to bottom in this folder, which loses all it had."""
    for path in Path().iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    Path(unpack("clean-5.5.0", Path().absolute()).path).rename("store")
    # As a script does, so that what it defines is found where Spark looks for it.
    names = {"__name__": "__main__"}
    exec(compile(examples(page), str(page), "exec"), names)
    session = SparkSession.getActiveSession()
    if session is not None:
        stop_queries(session)
        forget(session)


def stop_queries(session: SparkSession) -> None:
    """End what a page has left running. For its own `spark.stop()` too: to start Spark takes long."""
    for query in session.streams.active:
        query.stop()


def forget(session: SparkSession) -> None:
    """Drop the views of a page."""
    for table in session.catalog.listTables():
        if table.isTemporary:
            session.catalog.dropTempView(table.name)


if __name__ == "__main__":
    os.chdir(sys.argv[1])  # before Spark starts: relative paths are those of its JVM
    with patch.object(SparkSession, "stop", stop_queries):
        for name in sys.argv[2:]:
            run(Path(name))
            print(f"ran {name}")
