"""The jobs that are commands of `rmqstore`; the entry point `rmqstore.commands` leads here.

A job's module is imported when its command runs.
"""

from __future__ import annotations

import sys

from rmq_store.cli.options import AUTO

COMMANDS = {
    "replay": (
        "rmqstore_jobs.replay:main",
        "Replay selected messages into another store, into Parquet, or to a broker.",
    ),
    "export": (
        "rmqstore_jobs.export:main",
        "Export messages to Parquet, CSV, JSON lines or Delta; a second run adds only new ones.",
    ),
    "dlq": ("rmqstore_jobs.dlq:main", "Report dead letters; optionally send them again."),
}


def submitted(command: str) -> None:
    """Run a command of `rmqstore` in a script for spark-submit, and end this process.

    Without --engine the work is done on Spark if spark-submit started the process, if --master is given,
    or if the log is larger than 4 GiB.
    """
    from rmq_store.cli.main import main

    sys.argv.insert(1, command)
    main(default_map={command: {"engine": AUTO}})
