"""Find the stores that a query reads, and the names of their brokers."""

from __future__ import annotations

import fnmatch
import glob
import json
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rmq_store import MessageStore
from rmq_store.errors import InvalidArgumentError, StoreError, nearest
from rmq_store.files.remote.glob import has_pattern, matching
from rmq_store.files.remote.uri_filesystem import is_uri
from spark_source.options.definitions import COMMITLOG
from spark_source.options.parse import SourceOptions

LOG = logging.getLogger("rmqstore")


@dataclass(frozen=True, slots=True)
class Target:
    """A store to open: its path, and the broker's name and configuration if given."""

    path: str
    broker_name: str | None = None
    broker_conf: str | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A store that could not be opened and was left out (unavailableStores=skip)."""

    path: str
    broker_name: str | None
    reason: str


def targets(asked: SourceOptions) -> list[Target]:
    """The stores to open. Raises InvalidArgumentError if a pattern matches none."""
    if asked.stores is not None:
        confs = _confs_by_name(asked.broker_conf, asked.stores)
        return [Target(path, name, confs.get(name)) for name, path in asked.stores.items()]
    paths = list(
        dict.fromkeys(path for one in asked.paths for path in _expanded(one, asked.storage_options))
    )
    if len(paths) > 1 and asked.broker_name is not None:
        raise InvalidArgumentError(
            None,
            reason=f"one brokerName was given for {len(paths)} stores",
            actual=asked.broker_name,
            advice=_stores_advice(paths),
        )
    if asked.broker_conf is not None and asked.broker_conf.lstrip().startswith("{"):
        raise InvalidArgumentError(
            None,
            reason="brokerConf is by broker name, but the stores have only paths",
            advice=_stores_advice(paths),
        )
    if len(paths) > 1 and asked.broker_conf is not None:
        raise InvalidArgumentError(
            None,
            reason=f"one brokerConf was given for {len(paths)} stores",
            actual=asked.broker_conf,
            advice=_stores_advice(paths) + ", and brokerConf as JSON by the same names",
        )
    if len(paths) == 1:
        return [Target(paths[0], asked.broker_name, asked.broker_conf)]
    return [Target(path, name) for path, name in zip(paths, names_of(paths), strict=True)]


def names_of(paths: Sequence[str]) -> list[str]:
    """Broker names for several stores: their folders' names.

    Stores with the same folder name get the first part of the path that differs: `a` and
    `b` of /data/a/store and /data/b/store. If one part is not enough, those after it are added.
    """
    parts = [_parts(path) for path in paths]
    own = [part[-1] if part else path for part, path in zip(parts, paths, strict=True)]
    for same in [name for name, count in Counter(own).items() if count > 1]:
        rows = [row for row, name in enumerate(own) if name == same]
        for row, name in zip(rows, _distinct([parts[row] for row in rows]), strict=True):
            own[row] = name
    return own


def name_in_pattern(pattern: str, path: str) -> str | None:
    """The parts of a path at the places of a pattern's wildcards: broker-a for /data/*/store.

    None if the path is not one of the pattern's.
    """
    wanted, found = _parts(pattern), _parts(path)
    if not has_pattern(pattern) or len(wanted) != len(found):
        return None
    pairs = list(zip(wanted, found, strict=True))
    if not all(fnmatch.fnmatchcase(part, want) for want, part in pairs):
        return None
    return "-".join(part for want, part in pairs if has_pattern(want))


def _parts(path: str) -> list[str]:
    local = path.removeprefix("file://")
    where = local if is_uri(local) else os.path.abspath(local)
    return [part for part in where.split("/") if part]


def _distinct(parts: Sequence[Sequence[str]]) -> list[str]:
    """For each path its parts from the first that differs on, as few as make all differ."""
    longest = max(map(len, parts))
    first = next((n for n in range(longest) if len({tuple(p[n : n + 1]) for p in parts}) > 1), 0)
    for stop in range(first + 1, longest + 1):
        names = ["-".join(part[first:stop]) for part in parts]
        if all(names) and len(set(names)) == len(names):
            return names
    return [part[-1] if part else "" for part in parts]  # refused later, because they are the same


def _expanded(path: str, storage_options: Mapping[str, str] | None) -> list[str]:
    """The folders that match a pattern; the path itself if it is no pattern or exists."""
    local = path.removeprefix("file://")
    if not has_pattern(path):
        return [path]
    if is_uri(local):
        found = matching(path, storage_options)
    else:
        found = [local] if os.path.isdir(local) else sorted(glob.glob(local))
    if not found:
        raise InvalidArgumentError(
            path, reason="the pattern matches no folder", advice="Try it with ls on the driver"
        )
    return found


def _confs_by_name(given: str | None, names: Mapping[str, str]) -> dict[str, str]:
    if given is None:
        return {}
    if not given.lstrip().startswith("{"):
        if len(names) == 1:
            return dict.fromkeys(names, given)
        raise InvalidArgumentError(
            None,
            reason="one brokerConf was given for several stores",
            actual=given,
            advice='Give JSON by broker name: {"broker-a": "/data/a/broker.conf"}',
        )
    try:
        confs = json.loads(given)
    except json.JSONDecodeError as error:
        raise InvalidArgumentError(
            None, reason=f"option 'brokerConf' is not JSON ({error})", actual=given
        ) from None
    for name in confs:
        if name not in names:
            raise InvalidArgumentError(
                None,
                reason=f"brokerConf names {name!r}, which is not one of the stores",
                advice=nearest(name, names),
            )
    return {name: str(path) for name, path in confs.items()}


def open_all(asked: SourceOptions) -> tuple[list[tuple[Target, MessageStore]], list[LeftOut]]:
    """Open every store. Returns the opened stores, which the caller closes, and those left out.

    Raises the error of a store that cannot be opened unless unavailableStores is `skip`, and
    InvalidArgumentError if two stores have the same name or none is left.
    """
    opened: list[tuple[Target, MessageStore]] = []
    left_out: list[LeftOut] = []
    last: StoreError | None = None
    try:
        for target in targets(asked):
            try:
                opened.append((target, _open(target, asked)))
                opened[-1][1].release_files()
            except StoreError as error:
                if asked.unavailable_stores == "fail":
                    raise
                LOG.warning("left out a store that cannot be opened: %s", error)
                left_out.append(LeftOut(target.path, target.broker_name, str(error)))
                last = error
        require_one_name_each([(store.broker_name, target.path) for target, store in opened])
    except StoreError:
        for _, store in opened:
            store.close()
        raise
    if not opened and last is not None:
        raise last
    return opened, left_out


def _open(target: Target, asked: SourceOptions) -> MessageStore:
    return MessageStore.open(
        target.path,
        broker_name=target.broker_name,
        broker_conf=target.broker_conf,
        queues=asked.source != COMMITLOG,
        storage_options=asked.storage_options,
    )


def require_one_name_each(named: Sequence[tuple[str, str]]) -> None:
    """Raise InvalidArgumentError if two of some (broker name, path) have one name."""
    by_name: dict[str, str] = {}
    for name, path in named:
        if name in by_name:
            raise InvalidArgumentError(
                path,
                reason=f"two stores have the broker name {name!r}; the other is {by_name[name]}",
                advice=_stores_advice([path for _, path in named]),
            )
        by_name[name] = path


def _stores_advice(paths: Sequence[str]) -> str:
    example = {f"broker-{'abcdefghijklmnopqrstuvwxyz'[i % 26]}": p for i, p in enumerate(paths[:2])}
    return f"Name them: option stores = {json.dumps(example)}"
