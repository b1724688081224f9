"""A report in a real browser: readable on a phone and on a wide screen, in both themes, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.support.browser import (
    LEAST_CONTRAST,
    TEXTS,
    chromium,
    contrast,
    luminance,
    requests,
    resize,
)
from tests.report.conftest import page_of
from tests.support.golden import Golden

pytestmark = pytest.mark.live

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
    with chromium() as driver:
        yield driver


@pytest.fixture(scope="module")
def address(golden: Golden, tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("page") / "report.html"
    page_of(golden("clean-4.9.7").path, target, "--verify")
    return Path(target).as_uri()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_it_is_readable(browser: Any, address: str, width: int, theme: str) -> None:
    resize(browser, width, theme)
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
