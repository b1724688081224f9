"""What the test of the report needs of the machine."""

from __future__ import annotations

import shutil
from typing import NamedTuple

from rmq_store.testing.live_broker.needs import missing_here


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
        missing_here(missing)
    return Browser(chromium, driver)
