"""What a test against a real broker needs of the machine."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

from rmq_store.testing.live_broker.java import HarnessUnavailable, jars

REQUIRED = "RMQSTORE_REQUIRE_LIVE"
"""Set to 1 where these tests have to run, as in CI."""


def need_jars(release: str, *, proxy: bool = False) -> None:
    """Skip the test, with the reason, where there is no JDK or no Maven to fetch a release.

    Where Maven is there and fails, so does the test: a skip would hide it. So it does where
    RMQSTORE_REQUIRE_LIVE=1 says that JDK and Maven have to be there.
    """
    try:
        jars(release, proxy=proxy)
    except HarnessUnavailable as missing:
        missing_here(str(missing))


def missing_here(what: str) -> NoReturn:
    """Skip the test, or fail it where RMQSTORE_REQUIRE_LIVE=1."""
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{what} ({REQUIRED}=1)")
    pytest.skip(what)
