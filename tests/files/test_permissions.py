"""Folders that the operating system does not let us read: one line that names them, never less data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.admin.rebuild import rebuild
from rmq_store.config.consumer_offsets import read_consumer_offsets
from rmq_store.errors import AccessError
from tests.support.golden import Golden
from tests.support.refusing import refuse
from tests.support.running.child import run_python


@pytest.fixture
def store(golden: Golden) -> Path:
    return Path(golden("clean-5.5.0").path)


def test_a_queue_folder_that_cannot_be_listed_is_named(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = next(path for path in (store / "consumequeue").iterdir() if path.is_dir())
    refuse(monkeypatch, os, "scandir", topic)
    with pytest.raises(AccessError, match="Permission denied") as caught, MessageStore.open(store):
        pass
    assert caught.value.path == str(topic)


def test_a_config_folder_that_cannot_be_looked_into_is_named(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, Path, "exists", store / "config")
    with pytest.raises(AccessError, match="Permission denied") as caught:
        read_consumer_offsets(store)
    assert caught.value.path == str(store / "config")


def test_any_error_of_the_system_ends_a_command_with_one_line(store: Path) -> None:
    script = f"""
import sys
import rmq_store.cli.commands.tables as tables
from rmq_store.cli.main import main

def failing(*_):
    raise OSError(5, "Input/output error", "/somewhere/file")

tables.StoreArgs.open = failing
sys.argv = ["rmqstore", "topics", {str(store)!r}]
main()
"""
    done = run_python("-c", script)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("rmqstore: [RMQSTORE_ACCESS] /somewhere/file: Input/output error")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("folder", ["config", "config/metadata"])
def test_a_rebuild_does_without_no_configuration_that_is_there(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    (store / folder).mkdir(exist_ok=True)
    refuse(monkeypatch, os, "scandir", store / folder)
    with pytest.raises(AccessError, match="copying the configuration") as caught:
        rebuild(store, tmp_path / "made")
    assert caught.value.path == str(store / folder)
