"""A private copy of a store, to find out what a recovery would do without changing the store."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rmq_store.config.broker_conf import PATH_SPLITTER, StoreConfig
from rmq_store.config.locate import commitlog_folders
from rmq_store.errors import SHOWN_AS, from_os_error
from rmq_store.files.durable_files import is_small_file
from rmq_store.files.truncate import PRIVATE
from rmq_store.format.layout import (
    BATCH_CONSUMEQUEUE_DIR,
    CONSUMEQUEUE_DIR,
    CONSUMEQUEUE_EXT_DIR,
    INDEX_DIR,
    LOCK_FILE,
)

_LINKED = (CONSUMEQUEUE_DIR, BATCH_CONSUMEQUEUE_DIR, CONSUMEQUEUE_EXT_DIR, INDEX_DIR)


@contextmanager
def private_copy(root: Path, config: StoreConfig) -> Iterator[tuple[Path, StoreConfig]]:
    """A folder with the content of the store `root`, and `config` for it. It is deleted at the end.

    Segment files are links until the first write to one makes it a copy without holes
    (`rmq_store.files.truncate.own`). So it needs room for the files that change: about the last
    file of the log and of the index. It lies in the folder of TMPDIR. Errors name the files of the
    store. Raises AccessError.
    """
    folder = Path(tempfile.mkdtemp(prefix="rmqstore-plan-"))
    logs = commitlog_folders(root, config)
    places = {folder / f"log-{number}": log for number, log in enumerate(logs)}
    # The folders of the log come first, because the first folder that fits is shown.
    shown = {str(place): str(source) for place, source in (*places.items(), (folder, root))}
    PRIVATE.add(folder)
    SHOWN_AS.update(shown)
    try:
        for place, log in places.items():
            _link(log, place)
        for part in _LINKED:
            _link(root / part, folder / part)
        _copy_small(root, folder, set(map(os.path.realpath, places.values())))
        paths = PATH_SPLITTER.join(place.name for place in places)
        yield folder, replace(config, storePathCommitLog=paths, readOnlyCommitLogStorePaths=None)
    except OSError as error:
        raise from_os_error(folder, error, "making a private copy of the store") from error
    finally:
        PRIVATE.discard(folder)
        for name in shown:
            SHOWN_AS.pop(name, None)
        shutil.rmtree(folder, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    """Make folders like those in `source`, with a link to each file."""
    if not source.is_dir():
        return
    for inside, _, names in os.walk(source):
        here = target / Path(inside).relative_to(source)
        here.mkdir(parents=True, exist_ok=True)
        for name in filter(lambda one: os.path.isfile(os.path.join(inside, one)), names):
            (here / name).symlink_to(os.path.abspath(os.path.join(inside, name)))


def _copy_small(root: Path, folder: Path, logs: set[str]) -> None:
    """Copy config/ and the marker files, which are written without `own`."""
    for child in root.iterdir():
        if is_small_file(child) and child.name != LOCK_FILE:
            shutil.copy2(child, folder / child.name)
    config = root / "config"
    if config.is_dir() and os.path.realpath(config) not in logs:
        shutil.copytree(config, folder / "config", ignore=_no_files)


def _no_files(folder: str, names: list[str]) -> list[str]:
    """What is neither a small file nor a folder, and links to folders: they may lead to themselves."""
    paths = {name: Path(folder, name) for name in names}
    return [
        name
        for name, path in paths.items()
        if not is_small_file(path) and (path.is_symlink() or not path.is_dir())
    ]
