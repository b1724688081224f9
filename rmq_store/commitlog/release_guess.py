"""Which release of the broker wrote a log, as far as its records show."""

from __future__ import annotations

from rmq_store.commitlog.log import CommitLog
from rmq_store.format.layout import PROPERTY_SEPARATOR


def guess_release_4(log: CommitLog) -> str | None:
    """ "4.9.0" or "4.9.7", by how the last property of the first record ends; None without one.

    Releases up to 4.9.0 write a separator (0x02) after it, later ones do not.
    """
    for extent in log.extents():
        if extent.record is not None and extent.record.properties:
            ends = extent.record.properties[-1] == PROPERTY_SEPARATOR
            return "4.9.0" if ends else "4.9.7"
    return None
