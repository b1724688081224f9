"""What a broker does without a file of its configuration or state, and so what to do about a broken one.

One table, for every error and finding about such a file. What it says was tried with a broker of 5.5.0.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from rmq_store.format.byte_layout import CHECKPOINT_FILE, TIMER_CHECK, TIMER_LOG

_GROUPS_BEGIN = "knows no offset of a group: each starts like a new one"
EFFECTS = {
    "topics.json": "knows no topic of its users and serves none of their messages, and does not start "
    "where a topic has a batch queue",
    "consumerOffset.json": _GROUPS_BEGIN,
    "lmqConsumerOffset.json": _GROUPS_BEGIN,
    "subscriptionGroup.json": "knows no group",
    "delayOffset.json": "delivers every delayed message in the log, delivered ones too",
    "consumerFilter.json": "knows no filter of a group",
    "consumerOrderInfo.json": "gives out again what it gave out in order",
    TIMER_CHECK: "delivers timer messages again that it has delivered",
    TIMER_LOG: "does not deliver the timer messages that wait",
    CHECKPOINT_FILE: "scans the whole log if it has to recover",
}
"""What a broker does that starts without the file and its .bak, which it makes again, empty."""

_NEWEST_FILES = 10
_OF_NEWEST_FILES = (
    f" (a broker of 5.4.0 or later dispatches its {_NEWEST_FILES} newest log files alone, unless "
    "commitLogRecoverMaxNum in its broker.conf is larger)"
)


def limit_of_dispatch(bases: Sequence[int], first: int) -> str:
    """What limits a broker that is to list the records from log offset `first` on, in words; empty if it
    lists all. `bases`: the log offsets at which the files of the log begin."""
    is_far = len(bases) > _NEWEST_FILES and first < bases[-_NEWEST_FILES]
    return _OF_NEWEST_FILES if is_far else ""


LEAVES_EMPTY = (
    "one that refuses writes an empty file in its place, and starts with that the next time"
)
"""What a broker of 5.5.0 does with each file that it loads, if neither it nor its .bak can be read."""


def effect_without(path: str | os.PathLike[str]) -> str:
    """What a broker does without a file, by its name or by that of its .bak: the end of a sentence."""
    name = os.path.basename(os.fspath(path)).removesuffix(".bak")
    return EFFECTS.get(name, "starts as if the file was empty")


def advice_on_broken(path: str | os.PathLike[str], *, with_backup: bool = False) -> str:
    """What to do about a file that cannot be read. `with_backup`: nor can its .bak, which
    is not empty."""
    refuses = f"No broker starts while neither can be read; {LEAVES_EMPTY}. " if with_backup else ""
    return (
        f"{refuses}Restore it from a copy or a replica: a broker that starts without it "
        f"{effect_without(path)}"
    )
