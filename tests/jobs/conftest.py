"""The engine that a job runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> SparkSession | None:
    """None, for this process; with ON_BOTH also a session of Spark."""
    on_spark = getattr(request, "param", "local") == "spark"
    session: SparkSession | None = request.getfixturevalue("spark") if on_spark else None
    return session
