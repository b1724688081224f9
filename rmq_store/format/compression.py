"""The bits of sysFlag, and decompression of bodies by them, with a size limit against decompression bombs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import lz4.frame
import numpy as np
import zstandard
from zlib_ng import zlib_ng

from rmq_store.errors import BodyError, LogOffset
from rmq_store.format.byte_layout import Bytes, Mask, Numbers


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
    OF_STORED_BODY: Final = COMPRESSED | COMPRESSION_MASK | INNER_BATCH | NEED_UNWRAP
    """Bits that a message lacks whose body was decompressed, or taken out of an inner batch."""


def enters_queue(sys_flag: Any) -> Any:
    """Whether a record, by its sysFlag, is neither prepared nor rolled back; or which of many are."""
    return sys_flag & SysFlag.TRANSACTION_PREPARED == 0


def enters_index(sys_flag: Any) -> Any:
    """Whether a record is not rolled back, by its sysFlag; or which of many are (IndexService#buildIndex)."""
    return sys_flag & SysFlag.TRANSACTION_MASK != SysFlag.TRANSACTION_ROLLBACK


DEFAULT_MAX_BODY_BYTES = 256 << 20
"""Largest body after decompression. The broker limits the stored size, to 4 MiB by default."""

_LZ4_STEP, _ZSTD_STEP = 16 << 10, 1 << 10  # bytes that become at most some megabytes
_GZIP, _GZIP_WINDOW, _ZLIB_WINDOW = b"\x1f\x8b", 31, 15
_GZIP_PAIR = int.from_bytes(_GZIP, "big")
_MAGICS = {"LZ4": b"\x04\x22\x4d\x18", "zstd": b"\x28\xb5\x2f\xfd"}
_ZLIB_ERROR: type[Exception] = zlib_ng.error  # type: ignore[assignment]  # typed as an object
_OF_LIBRARIES = (
    *(_ZLIB_ERROR, zstandard.ZstdError),
    *(RuntimeError, ValueError, EOFError, MemoryError),
)

_NAMES = {
    SysFlag.COMPRESSION_LZ4: "LZ4",
    SysFlag.COMPRESSION_ZSTD: "zstd",
    SysFlag.COMPRESSION_ZLIB: "zlib",
    0: "zlib",  # releases before 4.9.4, without type bits
}


def decompress(
    stored: bytes,
    sys_flag: int,
    *,
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
    path: str | None = None,
    log_offset: int | None = None,
) -> bytes:
    """The body that the producer sent, or `stored` itself if it is empty or sysFlag marks it as uncompressed.

    Raises BodyError if the body does not decompress, ends early, or exceeds `max_body_bytes`.
    """
    if not stored or not sys_flag & SysFlag.COMPRESSED:
        return stored
    kind = sys_flag & SysFlag.COMPRESSION_MASK
    name = _NAMES.get(kind)
    if name is None:
        raise _error(path, log_offset, f"unknown compression type {kind:#x} in sysFlag")
    try:
        body = _OPENERS[name](stored, max_body_bytes + 1)
    except _OF_LIBRARIES as error:
        raise _error(path, log_offset, f"the {name} body does not decompress: {error}") from error
    if len(body) > max_body_bytes:
        reason = f"the {name} body of {len(stored)} bytes exceeds the limit when decompressed"
        expected = f"at most {max_body_bytes} bytes"
        advice = "Raise max_body_bytes if you trust the producer, or read rawBody"
        raise _error(path, log_offset, reason, expected, advice)
    return body


def begin_compressed(fronts: Bytes, sys_flags: Numbers) -> Mask:
    """Whether the first 4 bytes of n bodies, (n, 4), are of the compression that their sysFlag names."""
    first, pair = fronts[:, 0], fronts[:, 0].astype(np.int64) * 256 + fronts[:, 1]
    # RFC 1950: deflate, and a check of both bytes.
    of_kind = {"zlib": ((first & 15 == 8) & (pair % 31 == 0)) | (pair == _GZIP_PAIR)}
    for name, magic in _MAGICS.items():
        of_kind[name] = (fronts == np.frombuffer(magic, np.uint8)).all(axis=1)
    begins = np.zeros(len(fronts), dtype=np.bool_)
    for kind, name in _NAMES.items():
        begins |= (sys_flags & SysFlag.COMPRESSION_MASK == kind) & of_kind[name]
    return begins


def _error(
    path: str | None,
    log_offset: int | None,
    reason: str,
    expected: str | None = None,
    advice: str = "Read column rawBody (SQL: of view rawMessages) to get the bytes as stored",
) -> BodyError:
    offset = None if log_offset is None else LogOffset(log_offset)
    return BodyError(path, offset=offset, reason=reason, expected=expected, advice=advice)


def _open_zlib(stored: bytes, limit: int) -> bytes:
    # Some clients store gzip under the flag, which no zlib stream begins like.
    opener = zlib_ng.decompressobj(_GZIP_WINDOW if stored[:2] == _GZIP else _ZLIB_WINDOW)
    body = opener.decompress(stored, limit)
    if not opener.eof and len(body) < limit:
        raise EOFError("the stream ends early")
    return body


def _open_frames(stored: bytes, limit: int, opener_of: Callable[[], Any], step: int) -> bytes:
    # Frames carry no content size, and a body may hold several. Small steps limit the memory:
    # four bytes of zstd can expand to a block of 128 KiB, and a byte of LZ4 to 255.
    pieces: list[bytes] = []
    size = at = 0
    opener = opener_of()
    while at < len(stored) and size < limit:
        some = stored[at : at + step]
        piece = opener.decompress(some)
        pieces.append(piece)
        size += len(piece)
        at += len(some)
        if opener.eof and (at := at - len(opener.unused_data or b"")) < len(stored):
            opener = opener_of()
    if not opener.eof and size < limit:
        raise EOFError("the frame ends early")
    return b"".join(pieces)


_OPENERS: dict[str, Callable[[bytes, int], bytes]] = {
    "zlib": _open_zlib,
    "LZ4": partial(_open_frames, opener_of=lz4.frame.LZ4FrameDecompressor, step=_LZ4_STEP),
    "zstd": partial(
        _open_frames,
        opener_of=lambda: zstandard.ZstdDecompressor().decompressobj(),
        step=_ZSTD_STEP,
    ),
}
