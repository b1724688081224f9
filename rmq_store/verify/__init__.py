"""Compares the log, the queues, the index and the configuration of a store. Read-only.

Each finding names its place, what it means and what to do. Repairs live in `admin` and `recovery`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmq_store.verify.findings import Finding, Severity
    from rmq_store.verify.verify_store import VerifyReport, verify

__all__ = ["Finding", "Severity", "VerifyReport", "verify"]
_HOME = {
    "Finding": "findings",
    "Severity": "findings",
    "VerifyReport": "verify_store",
    "verify": "verify_store",
}


def __getattr__(name: str) -> Any:
    # Imported on demand: a command that needs one module does not wait for the whole room.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
