"""How full a disk is, as a broker counts it."""

from __future__ import annotations

import os
import shutil


def disk_used_percent(folder: str | os.PathLike[str]) -> int:
    """The used share of the disk of a folder, in percent, rounded up.

    Space that is reserved for root counts as neither used nor free.
    Source: UtilAll#getDiskPartitionSpaceUsedPercent.
    """
    usage = shutil.disk_usage(folder)
    whole = usage.used + usage.free
    return -(-100 * usage.used // whole) if whole else 0
