"""The fixtures. pytest loads this module in every run, so it imports the product only when asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from rmq_store.testing.live_broker.harness import Broker
    from rmq_store.testing.store_checks import StoreChecks, StoreFactory

NEWEST = "5.5.0"


class LiveBroker(Protocol):
    """Starts a real broker of a release; it ends with the test."""

    def __call__(
        self,
        release: str = NEWEST,
        *,
        store: str | os.PathLike[str] | None = None,
        topics: Mapping[str, Mapping[str, Any]] | None = None,
        conf: Mapping[str, str | int | bool] | None = None,
        proxy: bool = False,
    ) -> Broker:
        """`store`: the broker runs on a copy of it, with its file sizes. `topics`: declared before
        the start. `conf`: settings of the broker. `proxy`: with the gRPC proxy (5.x)."""


@pytest.fixture
def rmq_store_factory(tmp_path: Path) -> StoreFactory:
    """Make stores of messages that are given as dicts: `rmq_store_factory([{"topic": ...}])`."""
    from rmq_store.testing.store_checks import StoreFactory

    return StoreFactory(tmp_path)


@pytest.fixture
def rmq_store_at() -> Callable[[str | os.PathLike[str]], StoreChecks]:
    """Check a store that the application has written: `rmq_store_at(path).assert_topics(...)`."""
    from rmq_store.testing.store_checks import StoreChecks

    return StoreChecks


@pytest.fixture
def live_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """Start real brokers on loopback. Needs a JDK, and Maven the first time.

    Where these are missing, skips the test; with RMQSTORE_REQUIRE_LIVE=1 it fails.
    """
    from rmq_store.testing.live_broker.broker_files import sizes_of
    from rmq_store.testing.live_broker.harness import Broker, boot_copy
    from rmq_store.testing.live_broker.needs import need_jars

    with ExitStack() as running:

        def start(
            release: str = NEWEST,
            *,
            store: str | os.PathLike[str] | None = None,
            topics: Mapping[str, Mapping[str, Any]] | None = None,
            conf: Mapping[str, str | int | bool] | None = None,
            proxy: bool = False,
        ) -> Broker:
            need_jars(release, proxy=proxy)
            work = tmp_path_factory.mktemp("broker")
            if store is None:
                broker = Broker(release, work, conf=conf, topics=topics, proxy=proxy)
            else:
                all_conf = {**sizes_of(Path(store)), **(conf or {})}
                broker = boot_copy(Path(store), work, release, all_conf, topics=topics, proxy=proxy)
            return running.enter_context(broker)

        yield start
