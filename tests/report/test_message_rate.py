"""Messages by topic and time, compared with what the broker's own decoder read."""

from __future__ import annotations

import numpy as np
import pytest

from rmq_store.questions import usage
from tests.support.golden import Golden, messages_in


@pytest.mark.parametrize("counted", [1 << 16, 1])
@pytest.mark.parametrize(
    "name",
    [
        *("clean-5.3.3", "crash-5.5.0", "expired-5.5.0", "lmq-5.3.3", "multipath-5.5.0"),
        *("hours-crash-5.5.0", "days-crash-5.5.0"),
    ],
)
def test_the_counts_are_those_of_the_broker(
    name: str, counted: int, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a queue's entries are read (few messages) or bisected (many)."""
    monkeypatch.setattr(usage, "_COUNTED", counted)
    store = golden(name)
    with store.open() as opened:
        found = usage.message_rate(opened, periods=40)
    expected: dict[str, tuple[int, ...]] = {}
    for queue, records in store.by_queue.items():
        if queue.topic.startswith("%LMQ%"):
            continue
        times = [one["storeTimestamp"] for one in records for _ in range(messages_in(one))]
        counts = np.histogram(times, bins=np.array(found.edges) - 0.5)[0]
        before = expected.get(queue.topic, (0,) * len(counts))
        expected[queue.topic] = tuple(int(a + b) for a, b in zip(before, counts, strict=True))
    assert len(found.edges) > 2
    assert found.counts == expected
