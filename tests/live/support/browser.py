"""A real browser for the tests of pages: what it needs of the machine, and what it measures."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from rmq_store.testing.live_broker.needs import missing_here

# The lowest contrast between a text and what is behind it that WCAG 2.1 (AA) calls readable.
LEAST_CONTRAST = 4.5
# Every visible text with its colour, that of the first opaque box behind it, and where it ends.
TEXTS = """
const texts = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const parent = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || !parent.checkVisibility()) continue;
  if (parent.closest('style')) continue;
  const svg = parent.closest('svg');
  const style = getComputedStyle(parent);
  let box = parent, behind = 'rgba(0, 0, 0, 0)';
  while (box && behind === 'rgba(0, 0, 0, 0)') {
    behind = getComputedStyle(box).backgroundColor; box = box.parentElement;
  }
  const place = parent.getBoundingClientRect();
  texts.push({text: walker.currentNode.data.trim(), colour: svg ? style.fill : style.color, behind,
    height: place.height, svg: !!svg});
}
return texts;
"""


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


@contextmanager
def chromium() -> Iterator[Any]:
    """Chromium without a window, which keeps a log of what it asks for."""
    needed = need_browser()
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = needed.chromium
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = Chrome(options=options, service=Service(needed.driver))
    try:
        yield driver
    finally:
        driver.quit()


def resize(browser: Any, width: int, theme: str) -> None:
    """Make the window so wide, in a theme, and its logs empty."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get_log("performance")
    browser.get_log("browser")


def requests(browser: Any) -> set[str]:
    """Every address that the page made the browser ask for."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [one["params"] for one in events if one["method"] == "Network.requestWillBeSent"]
    assert sent
    return {one["request"]["url"] for one in sent} - {"data:,"}


def luminance(colour: str) -> float:
    """The relative luminance of `rgb(r, g, b)`, by WCAG 2.1."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours, by WCAG 2.1."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
