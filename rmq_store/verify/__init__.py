"""Check that the log, the queues, the index and the configuration of a store agree. Read-only.

Each finding says where it is, what it means and what to do. `admin` and `recovery` repair.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmq_store.verify.findings import Finding, Severity
    from rmq_store.verify.verify_store import VerifyReport, verify

__all__ = ["Finding", "Severity", "VerifyReport", "verify"]


def __getattr__(name: str) -> Any:
    # Imports on demand, so that a command that needs one module does not load the whole package.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "findings" if name in ("Finding", "Severity") else "verify_store"
    return getattr(import_module(f"{__name__}.{module}"), name)
