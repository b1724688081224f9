"""A report in a real browser: readable on a phone and on a wide screen, in both themes, without a network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.support.browser import need_browser
from tests.report.conftest import page_of
from tests.support.golden import Golden

pytestmark = pytest.mark.live

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
# Pairs of texts of one plot that lie over each other.
OVERLAPS = """
const found = [];
for (const svg of document.querySelectorAll('svg')) {
  if (!svg.checkVisibility()) continue;
  const boxes = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
  boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
    const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
    const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
    if (wide > 1 && high > 2) found.push([a, b]);
  }));
}
return found;
"""
OUTSIDE = """
return [...document.querySelectorAll('svg text')].filter(t => t.checkVisibility() && (
  t.getBoundingClientRect().left < 0 || t.getBoundingClientRect().right > innerWidth)
).map(t => t.textContent);
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
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


@pytest.fixture(scope="module")
def address(golden: Golden, tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("page") / "report.html"
    page_of(golden("clean-4.9.7").path, target, "--verify")
    return Path(target).as_uri()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_it_is_readable(browser: Any, address: str, width: int, theme: str) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get_log("performance")
    browser.get_log("browser")
    browser.get(address)
    assert browser.execute_script("return innerWidth") == width
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    texts = browser.execute_script(TEXTS)
    assert len(texts) > 300
    for one in texts:
        assert contrast(one["colour"], one["behind"]) >= LEAST_CONTRAST, one
    assert all(one["height"] >= 9 for one in texts if one["svg"])  # pixels
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (luminance(paper) < 0.5) == (theme == "dark")
    plots = [f"return document.querySelectorAll('svg.{kind}')" for kind in ("narrow", "wide")]
    shown = [[svg.is_displayed() for svg in browser.execute_script(plot)] for plot in plots]
    assert shown == [[width == 400] * 4, [width == 1600] * 4]
    assert browser.execute_script(OVERLAPS) == []
    assert browser.execute_script(OUTSIDE) == []
    assert browser.get_log("browser") == []
    assert requests(browser) == {address}


def test_a_click_selects_a_command(browser: Any, address: str) -> None:
    browser.get(address)
    command = browser.find_elements("css selector", "code.command")[0]
    command.click()
    assert browser.execute_script("return getSelection().toString()") == command.text
    assert command.text.startswith("rmqstore ")


def test_it_can_be_printed(browser: Any, address: str) -> None:
    """On paper it is black on white, and as wide as the page, whatever the theme."""
    media = {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    metrics = {"width": 720, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(address)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 720
    texts = browser.execute_script(TEXTS)
    assert {one["behind"] for one in texts} <= {"rgb(255, 255, 255)", "rgb(244, 245, 247)"}
    for one in texts:
        assert contrast(one["colour"], one["behind"]) >= LEAST_CONTRAST, one
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


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
