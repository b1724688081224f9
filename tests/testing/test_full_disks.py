"""Brokers on a full disk: users of the harness are warned, and where our own tests write."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest

from rmq_store.testing.live_broker.harness import Broker
from tests.support.running import roomy_folder


class Usage(NamedTuple):
    total: int
    used: int
    free: int


class StartedBroker(Broker):
    def _start_once(self, ports: object = None) -> None:
        """Starts nothing."""


@pytest.mark.parametrize(("used", "warned"), [(900, False), (901, True)])
def test_a_broker_that_would_refuse_messages_is_warned_of(
    used: int, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the disk is in whole: a part of it may be reserved for root."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(5000, used, 1000 - used))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        StartedBroker("5.5.0", tmp_path).start()
    assert ["% full: above 90 %" in str(one.message) for one in caught] == [True] * warned


def test_brokers_stay_on_a_disk_that_has_room_and_other_tests_in_memory_that_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr(roomy_folder, "MEMORY", str(memory))
    usual = tempfile.gettempdir()
    sizes = {usual: Usage(100 << 30, 79 << 30, 21 << 30), str(memory): Usage(0, 0, 7 << 30)}
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: sizes[str(folder)])

    def chosen(*, brokers: bool) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "tempdir", usual)
            patch.setenv("TMPDIR", usual)
            patch.setenv("SPARK_LOCAL_DIRS", usual)
            roomy_folder.use_roomy_folder(brokers=brokers)
            found = tempfile.gettempdir()
            assert [os.environ[name] for name in ("TMPDIR", "SPARK_LOCAL_DIRS")] == [found] * 2
            return found

    assert chosen(brokers=True) == usual
    assert Path(chosen(brokers=False)).parent == memory
    sizes[usual] = Usage(100 << 30, 80 << 30, 20 << 30)
    assert Path(chosen(brokers=True)).parent == memory
    sizes[str(memory)] = Usage(0, 0, 5 << 30)
    assert chosen(brokers=True) == chosen(brokers=False) == usual
