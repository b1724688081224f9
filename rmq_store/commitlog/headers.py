"""Positions and fixed fields of many records, gathered as columns.

The fast counterpart of `format.record._split`: every step is one numpy call over all records of a
window.
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
STORE_HOST_AT = BORN_HOST_AT + HOST_V4_SIZE + 8  # with an IPv4 bornHost: after storeTimestamp
# Fields of eight bytes that are copied and never used in arithmetic.
_HEAD_WORDS = np.dtype(
    {
        "names": ["physical", "born", "store"],
        "formats": ["u8", "u8", "u8"],
        "offsets": [28, BORN_HOST_AT, STORE_HOST_AT],
        "itemsize": HEAD_SIZE,
    }
)
# The fields after bornHost, up to the end of the head, for records with IPv6 hosts.
_V6_BITS = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6


class Headers:
    """n records of one window: `at` is the start of each; all positions count in the window.

    `valid` marks the rows that are whole records at their physicalOffset. Values of other rows are
    meaningless. Body and record CRCs are not checked.
    """

    def __init__(self, window: Bytes, at: Ints, base: int) -> None:
        """`window`: bytes of the log from offset `base` on. `at`: int64 positions in it."""
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

    def take(self, rows: Ints | Mask | slice) -> Headers:
        """The headers of some rows, without gathering or checking again."""
        taken = Headers.__new__(Headers)
        taken.window, taken.base, taken._limit = self.window, self.base, self._limit
        for name in _BY_ROW:
            setattr(taken, name, getattr(self, name)[rows])
        taken.has_v6 = self.has_v6 and bool(taken._is_v6.any())
        return taken

    def _gather_heads(self) -> npt.NDArray[Any]:
        """The first 88 bytes of every record, by one fancy index on a view of stride one."""
        if self._limit < 0:
            return np.zeros(len(self.at), dtype=RECORD_HEAD)
        every = np.ndarray(
            (self._limit + 1,), dtype=f"V{HEAD_SIZE}", buffer=self.window, strides=(1,)
        )
        heads: npt.NDArray[Any] = every[self._safe].view(RECORD_HEAD)
        return heads

    def _locate(self, sound: Mask) -> None:
        """Set positions and lengths of body, topic and properties; exclude rows that do not add up."""
        shift = self._v6_shift()
        self.body_length = self._body_lengths(shift)
        sound &= self.body_length >= 0
        self.body_at = self.at + (HEAD_SIZE + shift)
        topic_field = self.body_at + self.body_length
        # A length that points out of the window is clipped; the sum is then wrong.
        self.topic_length, width = self._topic_lengths(self._clip(topic_field))
        sound &= self.topic_length >= 0
        self.topic_at = topic_field + width
        properties_field = self.topic_at + self.topic_length
        self.properties_length = self._big16(properties_field)
        sound &= self.properties_length >= 0
        self.properties_at = properties_field + PROPERTIES_LENGTH_SIZE
        self.valid = sound & (self.properties_at + self.properties_length == self.at + self.total)

    def _v6_shift(self) -> Ints | int:
        """How far IPv6 hosts move the fields after them."""
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
        """Positions clipped to the window, so that a wrong length reads garbage inside it."""
        last = max(0, len(self.window) - PROPERTIES_LENGTH_SIZE)
        return np.clip(positions, 0, last)

    def integers_at(self, positions: Ints, dtype: str) -> Ints:
        """Big-endian integers of `dtype` at `positions`, clipped to the window, as int64."""
        width = np.dtype(dtype).itemsize
        last = len(self.window) - width
        if last < 0:
            return np.zeros(len(positions), dtype=np.int64)
        every = np.ndarray((last + 1,), dtype=dtype, buffer=self.window, strides=(1,))
        values: Ints = every[np.clip(positions, 0, last)].astype(np.int64)
        return values

    def field(self, name: str, dtype: Any) -> npt.NDArray[Any]:
        """A fixed field of all records in native byte order; for hosts use `hosts`."""
        values = self.head[name].astype(dtype)
        if self.has_v6 and name in _BEHIND_BORN_HOST:
            rows = np.flatnonzero(self._is_v6)
            values[rows] = self.integers_at(
                self._safe[rows] + self._shifted(name, rows), RECORD_HEAD[name].str
            )
        return values

    def _shifted(self, name: str, rows: Ints) -> Ints:
        """The positions of `name` in the records `rows`, some with IPv6 hosts."""
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

        Rows with an IPv6 host hold garbage; `host_rows_v6` returns those rows.
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
        """The eight stored bytes of physicalOffset as one number per record."""
        return np.ascontiguousarray(self.head.view(_HEAD_WORDS)["physical"])

    def host_rows_v6(self, name: str) -> tuple[Ints, Ints]:
        """Rows with an IPv6 host, and the positions of that field in the window."""
        bit = SysFlag.BORN_HOST_V6 if name == "born" else SysFlag.STORE_HOST_V6
        rows = np.flatnonzero((self.sys_flag & bit) != 0)
        at = self._safe[rows] + BORN_HOST_AT
        if name == "store":
            born_v6 = (self.sys_flag[rows] & SysFlag.BORN_HOST_V6) != 0
            at = at + (STORE_HOST_AT - BORN_HOST_AT) + born_v6 * V6_EXTRA
        return rows, at


_BY_ROW = (
    "at",
    "_safe",
    "head",
    "total",
    "magic",
    "sys_flag",
    "_is_v6",
    "body_length",
    "body_at",
    "topic_length",
    "topic_at",
    "properties_length",
    "properties_at",
    "valid",
)
_BEHIND_BORN_HOST = frozenset(
    (
        "store_timestamp",
        "reconsume_times",
        "prepared_transaction_offset",
        "body_length",
    )
)
_BEHIND_STORE_HOST = _BEHIND_BORN_HOST - {"store_timestamp"}
