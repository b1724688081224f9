"""What a test against real classes needs of the machine."""

from __future__ import annotations

import os
import shutil
from typing import NamedTuple

import pytest

from rmq_store.testing.live_broker.harness import HarnessUnavailable, jars

REQUIRED = "RMQSTORE_REQUIRE_LIVE"
"""Set to 1 by .ci/run: these tests have to run."""


def need_jars(release: str, *, proxy: bool = False) -> None:
    """Skip the test, with the reason, where there is no JDK or no Maven to fetch a release.

    Where Maven is there and fails, so does the test: a skip would hide it. So it does where
    RMQSTORE_REQUIRE_LIVE=1 says that JDK and Maven have to be there.
    """
    try:
        jars(release, proxy=proxy)
    except HarnessUnavailable as missing:
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{missing} ({REQUIRED}=1)")
        pytest.skip(str(missing))


class Browser(NamedTuple):
    """Where a browser and the program that drives it are."""

    chromium: str
    driver: str


def need_browser() -> Browser:
    """Debian's packages chromium and chromium-driver. Where one is missing, as for `need_jars`."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        missing = (
            "no chromium and chromedriver on the path: apt-get install chromium chromium-driver"
        )
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{missing} ({REQUIRED}=1)")
        pytest.skip(missing)
    return Browser(chromium, driver)
