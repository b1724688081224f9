"""Stores made of a few messages, which are given as dicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rmq_store.store import MessageStore
from rmq_store.testing.store_checks import StoreChecks


class StoreFactory:
    """Creates stores below a folder that the test owns."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def __call__(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        path: Path | None = None,
        release: str | None = None,
        broker_conf: Mapping[str, Any] | None = None,
    ) -> StoreChecks:
        """A new store with the messages, in their order, closed as a broker closes it.

        A message is a mapping of columns: `topic` and `body` (text is UTF-8), and if wanted
        `queueId` (0), `keys` (text, or a list of words) and `tags`, or instead of both all
        `properties` (with KEYS and TAGS), `storeTimestamp` (ms; now), and the others of
        `StoreWriter.append_batch`. `path`: where; by default a new folder. `broker_conf`:
        settings, such as mappedFileSizeCommitLog. Raises InvalidMessageError for what a broker of
        that release would refuse.
        """
        if path is None:
            self._count += 1
            path = self._folder / f"store-{self._count}"
        with MessageStore.create(path, broker_conf, release=release) as store:
            for message in messages:
                store.append(_columns_of(message))
        return StoreChecks(path)


def _columns_of(message: Mapping[str, Any]) -> dict[str, Any]:
    columns = {"queueId": 0, **message}
    if isinstance(columns.get("body"), str):
        columns["body"] = columns["body"].encode()
    if isinstance(columns.get("keys"), (list, tuple)):
        columns["keys"] = " ".join(columns["keys"])
    return columns
