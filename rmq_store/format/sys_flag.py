"""The bits of sysFlag."""

from __future__ import annotations

from typing import Any, Final


class SysFlag:
    """Bits of sysFlag (MessageSysFlag)."""

    COMPRESSED: Final = 0x001
    MULTI_TAGS: Final = 0x002
    TRANSACTION_MASK: Final = 0x00C
    TRANSACTION_PREPARED: Final = 0x004
    TRANSACTION_COMMIT: Final = 0x008
    TRANSACTION_ROLLBACK: Final = 0x00C
    BORN_HOST_V6: Final = 0x010
    STORE_HOST_V6: Final = 0x020
    NEED_UNWRAP: Final = 0x040
    INNER_BATCH: Final = 0x080
    COMPRESSION_MASK: Final = 0x700
    COMPRESSION_LZ4: Final = 0x100
    COMPRESSION_ZSTD: Final = 0x200
    COMPRESSION_ZLIB: Final = 0x300


def enters_queue(sys_flag: Any) -> Any:
    """Whether a record, by its sysFlag, is neither prepared nor rolled back; or which of many are."""
    return sys_flag & SysFlag.TRANSACTION_PREPARED == 0


def enters_index(sys_flag: Any) -> Any:
    """Whether a record is not rolled back, by its sysFlag; or which of many are (IndexService#buildIndex)."""
    return sys_flag & SysFlag.TRANSACTION_MASK != SysFlag.TRANSACTION_ROLLBACK
