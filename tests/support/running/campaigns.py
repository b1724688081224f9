"""Campaigns: whole, or the part of their cases that a word decides.

Each commit runs a part of its own (`.ci/run` gives its id), so that over some commits all cases are
run, and what failed comes again with the same word: `make campaigns RMQSTORE_SEED=WORD`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

_T = TypeVar("_T")

WORD = os.environ.get("RMQSTORE_SEED", "")
SHARE = 24  # a part is one case of so many, where a test does not say otherwise


def chance(name: str) -> random.Random:
    """The random numbers of this run for what has that name."""
    return random.Random(f"{WORD} {name}")


def some(name: str, cases: Sequence[_T], share: int = SHARE) -> list[_T]:
    """All of the cases, or one of `share` of them (one at least), in their order."""
    if not WORD:
        return list(cases)
    chosen = chance(name).sample(range(len(cases)), count(len(cases), share))
    return [cases[at] for at in sorted(chosen)]


def few(name: str, cases: Sequence[Any], *often: Any) -> list[Any]:
    """Cases of a test: the `often` in each run, of the others a part in each campaign."""
    others = some(name, [case for case in cases if case not in often])
    return [*often, *(pytest.param(case, marks=pytest.mark.campaign) for case in others)]


def count(whole: int, share: int = SHARE) -> int:
    """How many cases of as many are run."""
    return -(-whole // share) if WORD else whole


def seed_of(name: str, whole: str) -> str:
    """What to begin random numbers with: `whole` where all cases are run, else this run's own."""
    return f"{WORD} {name}" if WORD else whole


def reported() -> str:
    """A line about it for the head of a run."""
    if not WORD:
        return "campaigns: whole"
    return f"campaigns: about one case of {SHARE}, chosen by RMQSTORE_SEED={WORD}"
