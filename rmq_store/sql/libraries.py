"""What SQL needs beyond the storage core, and its errors."""

from __future__ import annotations

from rmq_store.errors import StoreError, require_libraries

LIBRARIES = {"duckdb": "DuckDB"}


class SqlUnavailableError(StoreError):
    """SQL needs DuckDB, and it is not installed."""

    code = "RMQSTORE_SQL_UNAVAILABLE"


class SqlError(StoreError):
    """A query that DuckDB refuses, or cannot carry out."""

    code = "RMQSTORE_SQL"


def require_duckdb() -> None:
    """Raise SqlUnavailableError unless the extra `sql` is installed."""
    require_libraries(SqlUnavailableError, "SQL", "sql", LIBRARIES)
