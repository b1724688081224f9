"""How property tests run: by a seed that is known, so that a failure comes again anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hypothesis import HealthCheck, Phase, seed, settings

from tests.support.running import campaigns

_Test = TypeVar("_Test", bound=Callable[..., None])
_PHASES = (Phase.explicit, Phase.generate, Phase.shrink)
_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture)


def fast(examples: int) -> Callable[[_Test], _Test]:
    """A property test of so many examples, drawn alike in every run."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        print_blob=True,
        phases=_PHASES,
        suppress_health_check=_SLOW,
    )


def campaign(examples: int) -> Callable[[_Test], _Test]:
    """The same at length, or a part of it; the test carries the mark `campaign` as well."""

    def decorate(test: _Test) -> _Test:
        if campaigns.WORD:
            test = seed(f"{campaigns.WORD} {test.__name__}")(test)
        return fast(campaigns.count(examples))(test)

    return decorate
