"""Brings a store that was not closed cleanly into the state of a clean stop, in place.

`strict_*` truncates the log after its last whole record. `as_broker*` reproduces
DefaultMessageStore#load and #recover. `admin` rebuilds a store into a new folder.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmq_store.recovery.recover_store import plan_recovery, recover
    from rmq_store.recovery.report import RecoveryReport

__all__ = ["RecoveryReport", "plan_recovery", "recover"]


def __getattr__(name: str) -> Any:
    # Imported on demand, so that a command loads only the modules that it needs.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "report" if name == "RecoveryReport" else "recover_store"
    return getattr(import_module(f"{__name__}.{module}"), name)
