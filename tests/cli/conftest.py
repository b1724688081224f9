"""What tests of the command share: one store of a real broker."""

from __future__ import annotations

import pytest

from tests.support.golden import Golden, GoldenStore


@pytest.fixture(scope="module")
def store(golden: Golden) -> GoldenStore:
    return golden("clean-5.3.3")
