"""The engines of jobs: this process, and Spark."""

from __future__ import annotations

import pytest

ON_BOTH = pytest.mark.parametrize("engine", ["local", "spark"], indirect=True)
"""Runs a test in this process and on Spark. Others run in this process, which is faster."""
