"""Find the stores that a query reads, and the names of their brokers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rmq_store import MessageStore
from rmq_store.config.several_stores import expanded, names_of
from rmq_store.errors import InvalidArgumentError, StoreError, nearest
from rmq_store.escaping import LOG
from rmq_store.files.remote.uri_filesystem import absolute
from spark_source.options.definitions import COMMITLOG
from spark_source.options.parse import SourceOptions


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
    """The stores to open, by absolute paths: executors have a working folder of their own.

    Raises InvalidArgumentError if a pattern matches none.
    """
    return [
        Target(absolute(one.path), one.broker_name, one.broker_conf and absolute(one.broker_conf))
        for one in _as_given(asked)
    ]


def _as_given(asked: SourceOptions) -> list[Target]:
    if asked.stores is not None:
        confs = _confs_by_name(asked.broker_conf, asked.stores)
        return [Target(path, name, confs.get(name)) for name, path in asked.stores.items()]
    paths = list(
        dict.fromkeys(path for one in asked.paths for path in expanded(one, asked.storage_options))
    )
    if len(paths) > 1 and asked.broker_name is not None:
        raise InvalidArgumentError(
            reason=f"one brokerName was given for {len(paths)} stores",
            actual=asked.broker_name,
            advice=_stores_advice(paths),
        )
    if asked.broker_conf is not None and asked.broker_conf.lstrip().startswith("{"):
        raise InvalidArgumentError(
            reason="brokerConf is by broker name, but the stores have only paths",
            advice=_stores_advice(paths),
        )
    if len(paths) > 1 and asked.broker_conf is not None:
        raise InvalidArgumentError(
            reason=f"one brokerConf was given for {len(paths)} stores",
            actual=asked.broker_conf,
            advice=_stores_advice(paths) + ", and brokerConf as JSON by the same names",
        )
    if len(paths) == 1:
        return [Target(paths[0], asked.broker_name, asked.broker_conf)]
    return [Target(path, name) for path, name in zip(paths, names_of(paths), strict=True)]


def _confs_by_name(given: str | None, names: Mapping[str, str]) -> dict[str, str]:
    if given is None:
        return {}
    if not given.lstrip().startswith("{"):
        if len(names) == 1:
            return dict.fromkeys(names, given)
        raise InvalidArgumentError(
            reason="one brokerConf was given for several stores",
            actual=given,
            advice='Give JSON by broker name: {"broker-a": "/data/a/broker.conf"}',
        )
    try:
        confs = json.loads(given)
    except json.JSONDecodeError as error:
        raise InvalidArgumentError(
            reason=f"option 'brokerConf' is not JSON ({error})", actual=given
        ) from None
    for name in confs:
        if name not in names:
            raise InvalidArgumentError(
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
