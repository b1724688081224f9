"""Where tests against real brokers, and in a browser, are left out, and where that is a failure."""

from __future__ import annotations

import pytest

from rmq_store.testing.live_broker import needs
from rmq_store.testing.live_broker.java import HarnessUnavailable
from tests.live.support.browser import need_browser


@pytest.mark.parametrize("required", [None, "1"])
def test_what_is_missing_is_a_failure_where_it_has_to_be_there(
    monkeypatch: pytest.MonkeyPatch, required: str | None
) -> None:
    def missing(release: str, *, proxy: bool) -> None:
        raise HarnessUnavailable(f"no Maven for {release}")

    monkeypatch.setattr(needs, "jars", missing)
    monkeypatch.delenv(needs.REQUIRED, raising=False)
    if required is not None:
        monkeypatch.setenv(needs.REQUIRED, required)
    outcome = pytest.skip.Exception if required is None else pytest.fail.Exception
    with pytest.raises(outcome, match="no Maven"):
        needs.need_jars("5.5.0")


@pytest.mark.parametrize("required", [None, "1"])
def test_a_missing_browser_is_a_failure_where_it_has_to_be_there(
    monkeypatch: pytest.MonkeyPatch, required: str | None
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(needs.REQUIRED, raising=False)
    if required is not None:
        monkeypatch.setenv(needs.REQUIRED, required)
    outcome = pytest.skip.Exception if required is None else pytest.fail.Exception
    with pytest.raises(outcome, match="apt-get install chromium"):
        need_browser()
