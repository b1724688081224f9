"""Records and property strings of every kind for property tests, and runs of them as a log holds them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

import lz4.frame
import numpy as np
import zstandard
from hypothesis import strategies as st

from rmq_store import Record
from rmq_store.format.byte_layout import MAGIC_V1, MAGIC_V2, Bytes, Ints
from rmq_store.format.compression import SysFlag
from rmq_store.format.hashes import body_crc
from tests.support.encode_record import encode_record

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)

# Pieces that meet in a property string: names that the store looks at, separators where they do not
# belong, and bytes that are no UTF-8 (overlong, cut short, surrogates, beyond the last plane).
_NAMES = (b"TAGS", b"KEYS", b"UNIQ_KEY", b"WAIT", b"a", b"\xc3\xa9", b"__CRC32#")
_VALUES = (b"TagA", b"k1 k2", b"true", b"0", b"x\x01y", b"\xe6\xbc\xa2", b"\xf0\x9f\x98\x80")
_ODD = (
    *(b"", b"\x00", b"\x01", b"\x02", b"\x01\x01", b"\x02\x02", b"\x01\x02", b"\x80", b"\xff"),
    *(
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xed\xb0\x80",
        b"\xed\xa0",
        b"\xed",
        b"\xe6\xbc",
        b"\xf0\x9f",
    ),
    *(b"\xf5\x80\x80\x80", b"\xed\xa0\x80\xed\xb0\x80", b"\xf4\x90\x80\x80", b"\xe0\x80\x80"),
)
_REGULAR_ITEM = st.tuples(st.sampled_from(_NAMES), st.sampled_from(_VALUES)).map(b"\x01".join)
_ANY_PIECE = st.one_of(st.sampled_from((*_NAMES, *_VALUES, *_ODD)), st.binary(max_size=6))
_ODD_ITEM = st.lists(_ANY_PIECE, max_size=5).map(b"".join)
_SEPARATED = st.tuples(
    st.lists(st.one_of(_REGULAR_ITEM, _REGULAR_ITEM, _ODD_ITEM), max_size=7).map(b"\x02".join),
    st.sampled_from((b"", b"\x02")),
).map(b"".join)


def property_strings() -> st.SearchStrategy[bytes]:
    """As brokers write them, with or without the last separator, and everything they never write."""
    return st.one_of(_SEPARATED, _SEPARATED, st.binary(max_size=60))


_PLAIN_BODY = st.tuples(st.binary(max_size=60), st.just(0))
_PACKERS = {
    SysFlag.COMPRESSION_LZ4: lz4.frame.compress,
    SysFlag.COMPRESSION_ZSTD: zstandard.ZstdCompressor(write_content_size=False).compress,
    SysFlag.COMPRESSION_ZLIB: zlib.compress,
    0: zlib.compress,
}


def _packed(body: bytes, kind: int) -> tuple[bytes, int]:
    return _PACKERS[kind](body), SysFlag.COMPRESSED | kind


_BODY = st.one_of(
    _PLAIN_BODY,
    _PLAIN_BODY,
    st.builds(_packed, st.binary(max_size=60), st.sampled_from([*_PACKERS])),
)
_V6 = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
_ADDRESS_V6 = st.one_of(
    st.binary(min_size=16, max_size=16), st.just(bytes(10) + b"\xff\xff\x01\x02\x03\x04")
)
_PORT = st.one_of(st.integers(0, 65535), I32)


def _host(draw: st.DrawFn, is_v6: bool) -> bytes:
    address = draw(_ADDRESS_V6 if is_v6 else st.binary(min_size=4, max_size=4))
    return address + draw(_PORT).to_bytes(4, "big", signed=True)


@st.composite
def records(draw: st.DrawFn) -> Record:
    """A whole record: both versions, all hosts, any flags and times; its place is set by `as_log`.

    Neither topic nor properties end in zeros, which is how a record ends that was not written whole.
    """
    stored, packing = draw(_BODY)
    others = draw(I32) & ~(SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK | _V6)
    hosts = draw(st.sampled_from((0, 0, SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6, _V6)))
    magic = draw(st.sampled_from((MAGIC_V1, MAGIC_V1, MAGIC_V2)))
    most = 300 if magic == MAGIC_V2 else 127
    topic = draw(st.one_of(st.sampled_from((b"orders", b"%RETRY%g")), st.binary(max_size=most)))
    return Record(
        queue_id=draw(I32),
        flag=draw(I32),
        queue_offset=draw(I64),
        physical_offset=0,
        sys_flag=others | packing | hosts,
        born_timestamp=draw(I64),
        born_host=_host(draw, bool(hosts & SysFlag.BORN_HOST_V6)),
        store_timestamp=draw(I64),
        store_host=_host(draw, bool(hosts & SysFlag.STORE_HOST_V6)),
        reconsume_times=draw(I32),
        prepared_transaction_offset=draw(I64),
        body=stored,
        topic=topic.rstrip(b"\0") or b"t",
        properties=draw(property_strings()).rstrip(b"\0"),
        magic=magic,
        body_crc=body_crc(stored),
    )


def as_log(found: Sequence[Record], base: int = 0) -> tuple[Bytes, Ints, list[Record]]:
    """Records one behind the other from log offset `base` on: the bytes, where each starts, and they."""
    placed: list[Record] = []
    at = base
    for record in found:
        placed.append(replace(record, physical_offset=at))
        at += record.total_size
    raw = b"".join(encode_record(record) for record in placed)
    starts = [record.physical_offset - base for record in placed]
    return np.frombuffer(raw, dtype=np.uint8), np.array(starts, dtype=np.int64), placed
