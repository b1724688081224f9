"""What a report needs beyond the storage core."""

from __future__ import annotations

from rmq_store.errors import StoreError, require_libraries

LIBRARIES = {"jinja2": "jinja2", "matplotlib": "matplotlib"}


class ReportUnavailableError(StoreError):
    """A report needs Jinja2 and matplotlib, and they are not installed."""

    code = "RMQSTORE_REPORT_UNAVAILABLE"


def require_report() -> None:
    """Raise ReportUnavailableError unless the extra `report` is installed."""
    require_libraries(ReportUnavailableError, "a report", "report", LIBRARIES)
