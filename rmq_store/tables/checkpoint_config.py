"""Tables `checkpoint` and `config`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rmq_store.config.json_files import as_it_is, config_names, read_config, written_at
from rmq_store.errors import CorruptConfigError
from rmq_store.format.byte_layout import CHECKPOINT_FILE, CONFIG_DIR
from rmq_store.format.queues import QueueSlice
from rmq_store.markers.checkpoint import Checkpoint
from rmq_store.markers.lock_file import was_closed
from rmq_store.store import MessageStore
from rmq_store.tables.table import FLAG, LONG, TEXT, TIMESTAMP, Row, Table, columns

_SECRET = re.compile(r"(?i)(password|passwd|secret|access_?key|token|credential)")
HIDDEN = "(hidden)"


def _checkpoint(store: MessageStore, ranges: Sequence[QueueSlice] | None) -> Iterator[Row]:
    found = Checkpoint.read(Path(store.path) / CHECKPOINT_FILE)
    start, end = store.log_range()
    row: dict[str, Any] = {
        "logStart": start,
        "logEnd": end,
        "cleanShutdown": was_closed(store.path),
    }
    if found is not None:
        row |= {
            "physicMsgTimestamp": found.physic_msg_timestamp,
            "logicsMsgTimestamp": found.logics_msg_timestamp,
            "indexMsgTimestamp": found.index_msg_timestamp,
            "masterFlushedOffset": found.master_flushed_offset,
            "confirmPhyOffset": found.confirm_phy_offset,
            "logicsPhysicalOffset": found.logics_physical_offset,
        }
    yield row


CHECKPOINT_TABLE = Table(
    "checkpoint",
    "how far the broker says it flushed, and how far the files go",
    columns(
        ("physicMsgTimestamp", TIMESTAMP, "store time of the last record flushed"),
        ("logicsMsgTimestamp", TIMESTAMP, "the same for the queues"),
        ("indexMsgTimestamp", TIMESTAMP, "the same for the index"),
        ("masterFlushedOffset", LONG, "log offset up to which the master flushed"),
        ("confirmPhyOffset", LONG, "log offset up to which the replicas confirmed"),
        ("logicsPhysicalOffset", LONG, "log offset up to which the queues are flushed"),
        ("logStart", LONG, "log offset where the first file starts"),
        ("logEnd", LONG, "log offset after the last record"),
        ("cleanShutdown", FLAG, "whether the broker stopped cleanly (no file abort)"),
    ),
    _checkpoint,
)


class Value(NamedTuple):
    """A value of a configuration file. As a text it is hidden if it is a secret."""

    text: str
    is_secret: bool

    def __str__(self) -> str:
        return HIDDEN if self.is_secret else self.text


def config_rows(store: MessageStore) -> Iterator[tuple[str, Row, list[tuple[str, Value]]]]:
    """Of each file of config/: its name, also where its .bak or a database was read, the columns that all
    its rows have, and its values by their path of names. Only `problem` says that it cannot be read, and
    then it has no values."""
    folder = Path(store.path) / CONFIG_DIR
    for name in config_names(store.path):
        path = folder / name
        try:
            found = read_config(store.path, name, as_it_is)
        except CorruptConfigError as error:
            yield name, {"file": str(path), "modified": _modified(path), "problem": str(error)}, []
            continue
        if found is None:
            continue
        row: dict[str, Any] = {"file": str(found.path), "modified": written_at(found.path)}
        row["problem"] = "; ".join(found.warnings()) or None
        yield name, row, list(_leaves(found.content))


def _config(store: MessageStore, ranges: Sequence[QueueSlice] | None) -> Iterator[Row]:
    for _, row, values in config_rows(store):
        if not values:
            yield row
        for key, value in values:
            yield {**row, "name": key, "value": str(value)}


def _modified(path: Path) -> int | None:
    """When a file, or the .bak if it is missing, was written; ms."""
    written = written_at(path)
    return written_at(path.with_name(f"{path.name}.bak")) if written is None else written


def _leaves(value: Any, name: str = "", secret: bool = False) -> Iterator[tuple[str, Value]]:
    """Every value that is not an object, with its path of names joined by dots."""
    secret = secret or _SECRET.search(name.rpartition(".")[2]) is not None
    if isinstance(value, dict) and value:
        for key, inside in value.items():
            yield from _leaves(inside, f"{name}.{key}" if name else str(key), secret)
        return
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    yield name, Value(text, secret)


CONFIG = Table(
    "config",
    "the JSON files under config/, and databases in their place, value by value; secrets are hidden",
    columns(
        ("file", TEXT, "the file, or its .bak if that was read instead"),
        ("modified", TIMESTAMP, "when it was last written"),
        ("name", TEXT, "the path of names to the value, joined by dots"),
        ("value", TEXT, "the value; JSON if it is not a text"),
        ("problem", TEXT, "why the file cannot be read, or why its .bak was read instead"),
    ),
    _config,
)
