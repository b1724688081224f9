"""What looks at the bytes of a store cost, local or in an object store."""

from __future__ import annotations

from typing import NamedTuple

from rmq_store.files.parallel import LOOKS_IN_FLIGHT


class Cost(NamedTuple):
    """What looks at the bytes of a store cost, for those who can choose how to find something.

    `looks_at_once`: looks that are worth making side by side. `step`: bytes of a file that a pass
    over it takes at a time. `spare`: bytes that may be read beyond the few that a search needs, to
    save looks or to be sure. `grows`: whether the files may grow, or others appear, after the listing.
    """

    looks_at_once: int
    step: int
    spare: int
    grows: bool


LOCAL = Cost(looks_at_once=1, step=128 << 20, spare=2**62, grows=True)
REMOTE = Cost(looks_at_once=LOOKS_IN_FLIGHT, step=32 << 20, spare=64 << 10, grows=False)
