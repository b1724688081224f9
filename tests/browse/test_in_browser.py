"""The pages in a real browser: on a phone and a wide screen, in both themes, and by the keyboard alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from rmq_store.browse.pages import address
from tests.browse.conftest import Site
from tests.live.support.browser import (
    LEAST_CONTRAST,
    TEXTS,
    chromium,
    contrast,
    luminance,
    requests,
    resize,
)

pytestmark = pytest.mark.live

NAME = "clean-4.9.7"
SiteOf = Callable[[str], Site]
PAGES = (
    "",
    "topics?system=yes",
    "topic?name=orders",
    "message?topic=orders&queue=1&offset=5",
    "find?topic=orders&tag=paid",
    "trace?key=ORDER_1",
    "groups",
    "group?name=g-slow",
    "table",
    "table?name=deadLetters",
    "table?name=scheduled",
    "table?name=files",
    "sql?q=FROM+messages",
    "plots",
    "message?at=7",
    "nope",
)
UNLABELLED = """
return [...document.querySelectorAll('input:not([type=hidden]), select, textarea')]
  .filter(field => ![...field.labels].some(label => label.innerText.trim())).map(field => field.name);
"""
# What a keyboard has to reach, and how many of it there are.
REACHABLE = "return document.querySelectorAll('a[href], button, input:not([type=hidden]), select, textarea')"
# What has the focus: its number among these, and whether its outline shows.
FOCUS = f"""
const every = [...({REACHABLE.removeprefix("return ")})], one = document.activeElement;
const style = getComputedStyle(one);
return [every.indexOf(one), style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0, one.tagName];
"""
# Whether a page is whole and has these words.
SHOWN = """
return document.readyState === 'complete'
  && Boolean(document.querySelector('main')?.innerText.includes(arguments[0]));
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as driver:
        yield driver


def url(site: Site, page: str) -> str:
    return f"http://127.0.0.1:{site.port}{site.path}{page}"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_every_page_is_readable(browser: Any, site_of: SiteOf, width: int, theme: str) -> None:
    resize(browser, width, theme)
    for page in PAGES:
        load(browser, site_of(NAME), page)
        assert browser.execute_script("return innerWidth") == width
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width, page
        assert browser.execute_script(UNLABELLED) == [], page
        texts = browser.execute_script(TEXTS)
        assert texts
        for one in texts:
            assert contrast(one["colour"], one["behind"]) >= LEAST_CONTRAST, (page, one)
        paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (luminance(paper) < 0.5) == (theme == "dark")
    # Statuses of 4xx are in the log; what a policy refuses, and faults of a page, would be too.
    entries = [
        one["message"] for one in browser.get_log("browser") if "status of 4" not in one["message"]
    ]
    assert entries == []
    assert {urlsplit(one).netloc for one in requests(browser)} == {
        f"127.0.0.1:{site_of(NAME).port}"
    }


def load(browser: Any, site: Site, page: str) -> None:
    """Load a page, until it is made."""
    browser.get(url(site, page))
    while browser.find_elements("css selector", "meta[http-equiv=refresh]"):
        browser.get(url(site, page))


def press(browser: Any, *keys: str) -> None:
    from selenium.webdriver import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


def wait_for(browser: Any, words: str) -> None:
    """Until a page with these words is whole: one script asks, since an element may go with its page.

    Between two pages the browser refuses scripts too, each with another error.
    """
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20, ignored_exceptions=[WebDriverException]).until(
        lambda driver: driver.execute_script(SHOWN, words), f"no page says: {words}"
    )


def focused(browser: Any) -> str:
    return str(browser.execute_script("return document.activeElement.innerText"))


@pytest.mark.parametrize(
    "page", ["", "topic?name=orders&queue=1&tag=FB", "find", "sql?q=SELECT+1", "plots"]
)
def test_the_tab_key_reaches_everything_in_order(browser: Any, site_of: SiteOf, page: str) -> None:
    from selenium.webdriver.common.keys import Keys

    resize(browser, 1280, "light")
    load(browser, site_of(NAME), page)
    count = len(browser.execute_script(REACHABLE))
    reached: list[int] = []
    while len(reached) < count:
        press(browser, Keys.TAB)
        place, outlined, tag = browser.execute_script(FOCUS)
        assert tag != "BODY", f"{reached} of {count}"
        assert outlined
        reached += [place] * (place >= 0)  # a table that scrolls has the focus too
    assert reached == list(range(count))


def test_a_message_is_found_by_the_keyboard_alone(browser: Any, site_of: SiteOf) -> None:
    """From the first page past the menu to the field, to the trace, and to the message."""
    from selenium.webdriver.common.keys import Keys

    resize(browser, 1280, "light")
    load(browser, site_of(NAME), "")
    press(browser, Keys.TAB)
    assert focused(browser) == "To the content"
    press(browser, Keys.ENTER)
    press(browser, Keys.TAB)
    press(browser, "ORDER_1", Keys.ENTER)
    wait_for(browser, "Trace of ORDER_1")
    link = browser.find_elements("css selector", "#records-0 a[href^=message]")[0]
    browser.execute_script("arguments[0].focus()", link)
    press(browser, Keys.ENTER)
    wait_for(browser, "Message at log offset ")
    assert browser.find_elements("css selector", "pre")


def test_a_long_query_is_stopped_by_one_key(browser: Any, site_of: SiteOf) -> None:
    from selenium.webdriver.common.keys import Keys

    endless = (
        "SELECT count(*) FROM range(1000000000000) a, range(1000) b WHERE a.range % 7 = b.range"
    )
    browser.get(url(site_of(NAME), address("sql", q=endless)))
    assert focused(browser) == "Stop it"
    press(browser, Keys.ENTER)
    wait_for(browser, "What it has come to")
    browser.find_element("link text", "What it has come to").click()
    wait_for(browser, "it was stopped by hand")


SCRIPT = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>"


def test_content_that_is_html_does_nothing(browser: Any, make_site: Callable[..., Site]) -> None:
    site = make_site(
        [{"body": SCRIPT.encode(), "properties": {"KEYS": SCRIPT, "TAGS": SCRIPT, SCRIPT: SCRIPT}}]
    )
    quoted = SCRIPT.replace("'", "''")
    for page in (
        address("topic", name="t"),
        address("message", topic="t", queue=0, offset=0),
        address("find", topic="t", tag=SCRIPT),
        address("trace", key=SCRIPT),
        address("sql", q=f"SELECT '{quoted}' AS \"{SCRIPT}\", text(body) FROM messages"),
    ):
        load(browser, site, page)
        assert "window.ran" in browser.find_element("css selector", "main").text
        assert browser.execute_script("return window.ran") is None
        assert browser.find_elements("css selector", "script, img") == []
    load(browser, site, "")
    load(browser, site, address("body", topic="t", queue=0, offset=0))  # stored, not shown
    assert "window.ran" not in browser.find_element("css selector", "body").text
    assert browser.execute_script("return window.ran") is None
