"""The options of a write as typed values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmq_store.config.broker_conf import StoreConfig, paths_in
from rmq_store.errors import InvalidArgumentError, nearest
from rmq_store.files.journal import refuse_uri
from rmq_store.files.remote.uri_filesystem import has_pattern, local_path
from rmq_store.format.byte_layout import COMMITLOG_DIR
from rmq_store.format.releases import dialect
from rmq_store.scan.options import OPTIONS, STREAM_OPTIONS, WRITE_OPTIONS
from rmq_store.scan.parse_options import invalid, parse_option
from rmq_store.writing.store_writer import with_log_of_its_own

APPEND, ERROR, IGNORE = "append", "error", "ignore"
_OWN = {option.name.casefold(): option for option in WRITE_OPTIONS}
_OF_A_READ = {option.name.casefold(): option.name for option in (*OPTIONS, *STREAM_OPTIONS)}
_OF_A_QUERY = frozenset(("checkpointlocation", "queryname"))  # Spark passes its own on


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write. `path`: absolute, links followed. `config`: of brokerConf."""

    path: str
    topic: str | None = None
    queues: int = 4
    release: str | None = None
    config: StoreConfig = field(default_factory=StoreConfig)
    keep_timestamps: bool = False
    flush: bool = True
    if_exists: str = APPEND

    def config_of_target(self) -> StoreConfig:
        """The configuration with the log that the target has under its own root, as at its
        creation; as given where the log lies elsewhere."""
        own = with_log_of_its_own(self.config)
        names = paths_in(own.storePathCommitLog) or [COMMITLOG_DIR]
        return own if all(Path(self.path, name).is_dir() for name in names) else self.config


def parse_write_options(raw: Mapping[str, str], *, stream: bool) -> WriteOptions:
    """The options of a write as typed values. Names are compared without case.

    Raises InvalidArgumentError for an unknown name (with the nearest known one), an option of a
    read, an invalid value, a missing path, and a URI as the target. Raises MissingFileError for a
    brokerConf that does not exist.
    """
    fields: dict[str, Any] = {}
    for name, value in raw.items():
        if stream and name.casefold() in _OF_A_QUERY:
            continue
        option = _OWN.get(name.casefold())
        if option is None:
            raise _unknown(name)
        if stream and option.name == "ifExists":
            raise invalid(
                "option 'ifExists' has no meaning in a stream",
                "A stream appends what its journal does not list; leave the option out",
            )
        fields[option.field] = parse_option(option, value)
    if "path" not in fields:
        raise invalid("no path", "Give the store's folder: save('/path/to/store')")
    path = local_path(fields["path"])
    refuse_uri(path)
    if has_pattern(path) and not os.path.isdir(path):
        raise invalid(
            f"the path {path!r} is a pattern, and a write has one target", "Name one folder"
        )
    fields["path"] = os.path.realpath(path)
    dialect(fields.get("release"))  # raises for one that is not supported
    conf = fields.pop("broker_conf", None)
    return WriteOptions(**fields, config=StoreConfig.of(conf))


def _unknown(name: str) -> InvalidArgumentError:
    if name.casefold() == "mode":
        return invalid(
            "option 'mode' is for reading", 'Give df.write.mode("append") or mode("overwrite")'
        )
    if name.casefold() in _OF_A_READ:
        return invalid(
            f"option {_OF_A_READ[name.casefold()]!r} is for reading",
            f"A write takes {', '.join(option.name for option in WRITE_OPTIONS)}",
        )
    return invalid(
        f"unknown option {name!r}", nearest(name, [option.name for option in WRITE_OPTIONS])
    )
