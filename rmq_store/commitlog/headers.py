"""Where the parts of many records stand: the fixed fields gathered, the lengths added up.

The fast twin of `message._split`: every step is one numpy call over all records of a window.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rmq_store.format.array_types import Bytes, Ints, Mask
from rmq_store.format.layout import (
    BORN_HOST_AT,
    HEAD_SIZE,
    HOST_V4_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    PROPERTIES_LENGTH_SIZE,
    RECORD_HEAD,
    V6_EXTRA,
    SysFlag,
)

_BODY_LENGTH_SIZE = 4
STORE_HOST_AT = BORN_HOST_AT + HOST_V4_SIZE + 8  # with an IPv4 bornHost: behind storeTimestamp
# Fields of eight bytes that are copied, not counted with.
_HEAD_WORDS = np.dtype(
    {
        "names": ["physical", "born", "store"],
        "formats": ["u8", "u8", "u8"],
        "offsets": [28, BORN_HOST_AT, STORE_HOST_AT],
        "itemsize": HEAD_SIZE,
    }
)
# The fields behind bornHost, from its end to the end of the head, for records with IPv6 hosts.
_V6_BITS = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6


class Headers:
    """n records of one window: `at` is where each starts, other positions count like it.

    `valid` tells which rows are whole records standing where they say; the values of other rows
    mean nothing. Body and record CRCs are not looked at.
    """

    def __init__(self, window: Bytes, at: Ints, base: int) -> None:
        """`window`: bytes of the log from offset `base` on; `at`: int64, positions in it."""
        self.window = window
        self.at = at
        self.base = base
        self._limit = len(window) - HEAD_SIZE
        inside = (at >= 0) & (at <= self._limit)
        self._safe = at if inside.all() else np.where(inside, at, 0)
        self.head = self._gather_heads()
        self.total = self.head["total_size"].astype(np.int64)
        self.magic = self.head["magic"].astype(np.uint32)
        self.sys_flag = self.head["sys_flag"].astype(np.int32)
        self._is_v6 = (self.sys_flag & _V6_BITS) != 0
        self.has_v6 = bool(self._is_v6.any())
        sound = inside & ((self.magic == MAGIC_V1) | (self.magic == MAGIC_V2))
        sound &= (self.total >= MIN_RECORD_SIZE) & (at + self.total <= len(window))
        sound &= self.head["physical_offset"].astype(np.int64) == at + base
        self._locate(sound)

    def __len__(self) -> int:
        return len(self.at)

    def take(self, rows: Ints) -> Headers:
        """Those of some rows."""
        return Headers(self.window, self.at[rows], self.base)

    def _gather_heads(self) -> npt.NDArray[Any]:
        """The first 88 bytes of every record: one fancy index on a view of stride one."""
        if self._limit < 0:
            return np.zeros(len(self.at), dtype=RECORD_HEAD)
        every = np.ndarray(
            (self._limit + 1,), dtype=f"V{HEAD_SIZE}", buffer=self.window, strides=(1,)
        )
        heads: npt.NDArray[Any] = every[self._safe].view(RECORD_HEAD)
        return heads

    def _locate(self, sound: Mask) -> None:
        """Positions and lengths of body, topic and properties; rows that do not add up fall out."""
        shift = self._v6_shift()
        self.body_length = self._body_lengths(shift)
        sound &= self.body_length >= 0
        self.body_at = self.at + (HEAD_SIZE + shift)
        topic_field = self.body_at + self.body_length
        # A length that leads out of the window is read inside it, and then the sum is wrong.
        self.topic_length, width = self._topic_lengths(self._clip(topic_field))
        sound &= self.topic_length >= 0
        self.topic_at = topic_field + width
        properties_field = self.topic_at + self.topic_length
        self.properties_length = self._big16(properties_field)
        sound &= self.properties_length >= 0
        self.properties_at = properties_field + PROPERTIES_LENGTH_SIZE
        self.valid = sound & (self.properties_at + self.properties_length == self.at + self.total)

    def _v6_shift(self) -> Ints | int:
        """How far IPv6 hosts push the fields behind them."""
        if not self.has_v6:
            return 0
        born = (self.sys_flag & SysFlag.BORN_HOST_V6) != 0
        store = (self.sys_flag & SysFlag.STORE_HOST_V6) != 0
        shift: Ints = (born.astype(np.int64) + store) * V6_EXTRA
        return shift

    def _body_lengths(self, shift: Ints | int) -> Ints:
        lengths = self.head["body_length"].astype(np.int64)
        if self.has_v6:
            rows = np.flatnonzero(self._is_v6)
            field = self._safe[rows] + HEAD_SIZE - _BODY_LENGTH_SIZE + np.asarray(shift)[rows]
            lengths[rows] = self.integers_at(field, ">i4")
        return lengths

    def _topic_lengths(self, field: Ints) -> tuple[Ints, Ints | int]:
        if not len(self.window):
            return np.zeros(len(field), dtype=np.int64), 1
        one = self.window[field].view(np.int8).astype(np.int64)
        is_v2 = self.magic == MAGIC_V2
        if not is_v2.any():
            return one, 1
        return np.where(is_v2, self._big16(field), one), np.where(is_v2, 2, 1)

    def _big16(self, field: Ints) -> Ints:
        return self.integers_at(field, ">i2")

    def _clip(self, positions: Ints) -> Ints:
        """Positions that stay in the window, so that a wrong length reads rubbish, not beyond."""
        last = max(0, len(self.window) - PROPERTIES_LENGTH_SIZE)
        return np.clip(positions, 0, last)

    def integers_at(self, positions: Ints, dtype: str) -> Ints:
        """Big-endian integers of `dtype` at `positions`, as int64; clipped into the window."""
        width = np.dtype(dtype).itemsize
        last = len(self.window) - width
        if last < 0:
            return np.zeros(len(positions), dtype=np.int64)
        every = np.ndarray((last + 1,), dtype=dtype, buffer=self.window, strides=(1,))
        values: Ints = every[np.clip(positions, 0, last)].astype(np.int64)
        return values

    def field(self, name: str, dtype: Any) -> npt.NDArray[Any]:
        """A fixed field of all records in the machine's byte order; hosts have verbs of their own."""
        values = self.head[name].astype(dtype)
        if self.has_v6 and name in _BEHIND_BORN_HOST:
            rows = np.flatnonzero(self._is_v6)
            values[rows] = self.integers_at(
                self._safe[rows] + self._shifted(name, rows), RECORD_HEAD[name].str
            )
        return values

    def _shifted(self, name: str, rows: Ints) -> Ints:
        """Where `name` stands in the records `rows`, some of whose hosts are IPv6."""
        fields = RECORD_HEAD.fields
        assert fields is not None
        flags = self.sys_flag[rows]
        shift: Ints = ((flags & SysFlag.BORN_HOST_V6) != 0).astype(np.int64) * V6_EXTRA
        if name in _BEHIND_STORE_HOST:
            shift += ((flags & SysFlag.STORE_HOST_V6) != 0) * V6_EXTRA
        shift += int(fields[name][1])
        return shift

    def hosts(self, name: str) -> npt.NDArray[np.uint64]:
        """The 8 bytes of an IPv4 host field ("born" or "store") as one number per record.

        Rows whose host is IPv6 hold rubbish; `host_rows_v6` says which.
        """
        words = self.head.view(_HEAD_WORDS)
        values: npt.NDArray[np.uint64] = np.ascontiguousarray(words[name])
        if name == "store" and self.has_v6:
            rows = np.flatnonzero((self.sys_flag & SysFlag.BORN_HOST_V6) != 0)
            every = np.ndarray(
                (len(self.window) - HOST_V4_SIZE + 1,), np.uint64, self.window, strides=(1,)
            )
            field = self._safe[rows] + STORE_HOST_AT + V6_EXTRA
            values[rows] = every[np.clip(field, 0, len(every) - 1)]
        return values

    def physical_offset_bytes(self) -> npt.NDArray[np.uint64]:
        """The eight bytes of physicalOffset as they are stored, as one number per record."""
        return np.ascontiguousarray(self.head.view(_HEAD_WORDS)["physical"])

    def host_rows_v6(self, name: str) -> tuple[Ints, Ints]:
        """Rows whose host is IPv6, and where that field stands in the window."""
        bit = SysFlag.BORN_HOST_V6 if name == "born" else SysFlag.STORE_HOST_V6
        rows = np.flatnonzero((self.sys_flag & bit) != 0)
        at = self._safe[rows] + BORN_HOST_AT
        if name == "store":
            born_v6 = (self.sys_flag[rows] & SysFlag.BORN_HOST_V6) != 0
            at = at + (STORE_HOST_AT - BORN_HOST_AT) + born_v6 * V6_EXTRA
        return rows, at


_BEHIND_BORN_HOST = frozenset(
    (
        "store_timestamp",
        "reconsume_times",
        "prepared_transaction_offset",
        "body_length",
    )
)
_BEHIND_STORE_HOST = _BEHIND_BORN_HOST - {"store_timestamp"}
