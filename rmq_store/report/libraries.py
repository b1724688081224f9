"""What a report needs beyond the storage core."""

from __future__ import annotations

from importlib.util import find_spec

from rmq_store.errors import StoreError

_LIBRARIES = ("jinja2", "matplotlib")


class ReportUnavailableError(StoreError):
    """A report needs Jinja2 and matplotlib, and they are not installed."""

    code = "RMQSTORE_REPORT_UNAVAILABLE"


def require_libraries() -> None:
    """Raise ReportUnavailableError unless the extra `report` is installed."""
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        raise ReportUnavailableError(
            reason=f"a report needs {' and '.join(missing)}",
            advice="pip install 'rmqstore[report]'",
        )
