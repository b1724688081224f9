"""The engine that a job runs on, and a damaged store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.damage import flip_in_log
from tests.support.golden import GoldenStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> SparkSession | None:
    """None, for this process; with ON_BOTH also a session of Spark."""
    on_spark = getattr(request, "param", "local") == "spark"
    session: SparkSession | None = request.getfixturevalue("spark") if on_spark else None
    return session


@pytest.fixture
def damaged(copy: GoldenStore) -> GoldenStore:
    """One message of payments is hit."""
    for i in range(1000, 1040):
        flip_in_log(copy, 262_144 + i, 0xFF)
    return copy
