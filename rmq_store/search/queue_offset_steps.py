"""Ranges of queue offsets, walked in steps, whatever a queue claims to have."""

from __future__ import annotations

from rmq_store.store import MessageStore

_LEAST_BYTES = 16  # of the log for a message: a member of an inner batch has more


def offset_steps(store: MessageStore, start: int, stop: int, step: int) -> range:
    """The queue offsets at which steps of `step` begin, from `start` to before `stop`.

    The name of one file, or one entry, may claim that a queue has 2^62 messages. The log says how
    many there can be; a range with more is walked in as many steps as that number has. Its entries
    are few: a hole between files is one entry.
    """
    log_start, log_end = store.log_range()
    most = (log_end - log_start) // _LEAST_BYTES // step + 1
    return range(start, stop, max(step, -(-(stop - start) // most)))
