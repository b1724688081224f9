"""The broker release that wrote a log, guessed from its records."""

from __future__ import annotations

from rmq_store.commitlog.log import CommitLog
from rmq_store.format.layout import PROPERTY_SEPARATOR


def guess_release_4(log: CommitLog) -> str | None:
    """The release "4.9.0" or "4.9.7", from the end of the first properties; None without properties.

    Releases up to 4.9.0 write a separator (0x02) after the last property, later ones do not.
    """
    for extent in log.extents():
        if extent.record is not None and extent.record.properties:
            ends = extent.record.properties[-1] == PROPERTY_SEPARATOR
            return "4.9.0" if ends else "4.9.7"
    return None
