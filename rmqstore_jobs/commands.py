"""The jobs that are commands of `rmqstore`; the entry point `rmqstore.commands` leads here.

A job's module is imported when its command runs.
"""

from __future__ import annotations

COMMANDS = {
    "replay": (
        "rmqstore_jobs.replay:main",
        "Replay selected messages into another store, into Parquet, or to a broker.",
    ),
    "export": (
        "rmqstore_jobs.export:main",
        "Export messages to Parquet, CSV, JSON lines or Delta; a second run adds only new ones.",
    ),
    "dlq": (
        "rmqstore_jobs.dlq:main",
        "Report dead letters; optionally send them again.",
    ),
}
