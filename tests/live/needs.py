"""What a test against real classes needs of the machine."""

from __future__ import annotations

import pytest

from tests.live.harness import HarnessUnavailable, jars


def need_jars(release: str, *, proxy: bool = False) -> None:
    """Skip the test, with the reason, where there is no JDK or no Maven to fetch a release.

    Where Maven is there and fails, so does the test: a skip would hide it.
    """
    try:
        jars(release, proxy=proxy)
    except HarnessUnavailable as missing:
        pytest.skip(str(missing))
