"""Make reads look at less of the log than they do by default, so that small stores count as large."""

from __future__ import annotations

import pytest

from rmq_store.snapshot import health, lost_queue_ends, unlisted_records


def look_at(
    monkeypatch: pytest.MonkeyPatch, log_bytes: int, most_listed: int | None = None
) -> None:
    """`log_bytes`: of each end of the log. `most_listed`: entries compared with the whole log, if fewer."""
    for module in (health, lost_queue_ends):
        monkeypatch.setattr(module, "LOOKED_AT", log_bytes)
    if most_listed is not None:
        monkeypatch.setattr(unlisted_records, "MOST_LISTED", most_listed)
