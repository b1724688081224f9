"""The hot loops: plain loops over records, one source that runs compiled and interpreted.

Each module is Cython in pure Python mode: compiled where the package was built with a C compiler,
else run by Python as it stands, with the same results and some hundred times slower. `bits` holds the
few functions that are C when compiled; all bytes are read and written through them, within bounds.
Loops take buffers and numbers, and fill buffers that the caller made. Arrow and numpy stay outside.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib.machinery import (
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from importlib.util import find_spec
from pkgutil import iter_modules

LOG = logging.getLogger("rmqstore")

INTERPRETED_VARIABLE = "RMQSTORE_INTERPRETED"
"""An environment variable; if it is set, the loops run interpreted although they are compiled."""


class Sources:
    """Finds the sources of the loops: first on `sys.meta_path`, in place of what they were compiled to."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, _: object = None) -> ModuleSpec | None:
        """The source of a module of this package."""
        if not name.startswith(f"{__name__}.") or not path:
            return None
        return FileFinder(path[0], (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name)


if os.environ.get(INTERPRETED_VARIABLE):
    sys.meta_path.insert(0, Sources)


@lru_cache(maxsize=1)
def compiled() -> bool:
    """Whether this process runs the loops compiled, all of them."""
    specs = [
        find_spec(f"{__name__}.{module.name}")
        for module in iter_modules(__path__)
        if module.name != "bits" and not module.name.startswith("_")
    ]
    return all(spec is not None and isinstance(spec.loader, ExtensionFileLoader) for spec in specs)


def why_interpreted() -> str:
    """Why the loops run interpreted."""
    if os.environ.get(INTERPRETED_VARIABLE):
        return f"{INTERPRETED_VARIABLE} is set"
    return "rmqstore was installed without compiled ones; docs/install.md says how to get them"


MANY_RECORDS = 5_000
"""Work on more than these takes a second and more, where compiled loops take some milliseconds."""

_done = [0]  # records that this process has worked on, as far as it counts them


def count(records: int) -> None:
    """Count records that the loops work on. If they are many and run interpreted, log that, once."""
    before = _done[0]
    _done[0] += records
    if before <= MANY_RECORDS < _done[0] and not compiled():
        LOG.warning(
            "this takes some hundred times longer than it could, because loops run interpreted: %s",
            why_interpreted(),
        )
