"""What the transaction type of a record, among the bits of its sysFlag, decides: whether it is listed."""

from __future__ import annotations

from typing import Any

from rmq_store.format.sys_flag import SysFlag


def enters_queue(sys_flag: Any) -> Any:
    """Whether a record, by its sysFlag, is neither prepared nor rolled back; or which of many are."""
    return sys_flag & SysFlag.TRANSACTION_PREPARED == 0


def enters_index(sys_flag: Any) -> Any:
    """Whether a record is not rolled back, by its sysFlag; or which of many are (IndexService#buildIndex)."""
    return sys_flag & SysFlag.TRANSACTION_MASK != SysFlag.TRANSACTION_ROLLBACK
