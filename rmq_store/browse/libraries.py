"""What browsing needs beyond the storage core."""

from __future__ import annotations

from rmq_store.errors import StoreError, require_libraries
from rmq_store.report import libraries as report
from rmq_store.sql import libraries as sql

_OWN = {"starlette": "Starlette", "uvicorn": "uvicorn"}


class BrowseUnavailableError(StoreError):
    """Browsing needs Starlette, uvicorn and what reports and SQL need, and they are not installed."""

    code = "RMQSTORE_BROWSE_UNAVAILABLE"


def require_browse() -> None:
    """Raise BrowseUnavailableError unless the extra `browse` is installed."""
    every = _OWN | report.LIBRARIES | sql.LIBRARIES
    require_libraries(BrowseUnavailableError, "browsing", "browse", every)
