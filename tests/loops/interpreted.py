"""A module of rmq_store/loops interpreted, beside the compiled one, in the same process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from rmq_store import loops


@cache
def interpreted(name: str) -> ModuleType:
    """The module run from its source; so are the loops that it imports.

    The modules that everyone else imports stay as they are.
    """
    inside = f"{loops.__name__}."
    kept = {key: value for key, value in sys.modules.items() if key.startswith(inside)}
    attributes = dict(vars(loops))
    for key in kept:
        del sys.modules[key]
    sys.meta_path.insert(0, loops.Sources)
    try:
        return import_module(inside + name)
    finally:
        sys.meta_path.remove(loops.Sources)
        for key in [key for key in sys.modules if key.startswith(inside)]:
            del sys.modules[key]
        sys.modules.update(kept)
        for key in set(vars(loops)) - set(attributes):
            delattr(loops, key)
        vars(loops).update(attributes)


def source_of(module: ModuleType) -> ModuleType:
    """The same module run from its source."""
    return interpreted(module.__name__.rpartition(".")[2])


Form = Callable[[ModuleType], Any]
both_forms = pytest.mark.parametrize(
    "form", [lambda module: module, source_of], ids=("as installed", "interpreted")
)
