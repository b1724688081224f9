"""Keeps pandas out of a command: it loads in 0.2 s, and no command of this package uses it.

pyarrow loads pandas, if it is installed, as soon as it converts a value of Python or numpy.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_OTHER_ENGINE = ("--engine", "--master")  # Spark may need pandas


def leave_pandas_out(words: Sequence[str]) -> None:
    """For a command with these arguments, in a process that has not loaded pyarrow yet.

    Does nothing in another process: it may be a notebook or a test, which uses pandas itself.
    """
    if "pyarrow" not in sys.modules and not any(word.startswith(_OTHER_ENGINE) for word in words):
        sys.meta_path.insert(0, _NoPandas())


class _NoPandas(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Of all modules, only pandas is not to be found."""
        if name == "pandas":
            raise ModuleNotFoundError("a command does not load pandas", name=name)
        return None
