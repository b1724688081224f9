"""A batch holds a limited number of opened bytes, however well the bodies were compressed."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path

import lz4.frame
import numpy as np
import pyarrow as pa
import pytest
import zstandard

from rmq_store import MessageStore, StoreError
from rmq_store.arrow.column_values import OPENED_BYTES
from rmq_store.errors import BodyError
from rmq_store.format.byte_layout import MEMBER_HEAD, PROPERTIES_LENGTH_SIZE
from rmq_store.format.compression import SysFlag, decompress
from rmq_store.reading.slice_reader import MOST_MEMBERS, members_of_bodies

OPENED = 5 << 20
COUNT = 30
BROKEN = 17
LARGE = 21  # opens to more than a batch may hold
ZLIB = int(SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB)


def body_of(number: int) -> bytes:
    """The opened body: most are of 5 MiB, every fourth is short and not compressed."""
    if number % 4 == 3:
        return b"%d" % number
    return bytes([number]) * (OPENED_BYTES + 1 if number == LARGE else OPENED)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with all of them; the body of BROKEN does not open."""
    bodies = [body_of(number) for number in range(COUNT)]
    stored = [body if len(body) < 9 else zlib.compress(body) for body in bodies]
    stored[BROKEN] = stored[BROKEN][:-2000]
    flags = [0 if len(body) < 9 else ZLIB for body in bodies]
    path = tmp_path_factory.mktemp("opened") / "store"
    with MessageStore.create(path) as writer:
        writer.append_batch(
            pa.record_batch(
                {
                    "topic": ["orders"] * COUNT,
                    "queueId": pa.array([0] * COUNT, pa.int32()),
                    "body": pa.array(stored, pa.binary()),
                    "sysFlag": pa.array(flags, pa.int32()),
                    "tags": ["odd" if number % 2 else "even" for number in range(COUNT)],
                }
            )
        )
    return path


@pytest.fixture
def store(written: Path) -> MessageStore:
    return MessageStore.open(written)


@pytest.mark.parametrize("unwraps", [False, True])
@pytest.mark.parametrize("tags", [None, "odd"])
def test_a_batch_is_bounded_by_opened_bytes(
    store: MessageStore, tags: str | None, unwraps: bool
) -> None:
    met: list[StoreError] = []
    found: dict[int, bytes] = {}
    with store:
        for batch in store.read_batches(tags=tags, unwrap_batches=unwraps, on_damage=met.append):
            sizes = [len(body.as_buffer()) for body in batch["body"]]
            opened = [size for size in sizes if size > 9]
            assert sum(opened) <= OPENED_BYTES or len(opened) == 1
            found |= zip(batch["queueOffset"].to_pylist(), batch["body"].to_pylist(), strict=True)
    wanted = [n for n in range(COUNT) if n != BROKEN and (tags is None or n % 2)]
    assert list(found) == wanted, "in order, and each once"
    assert all(found[number] == body_of(number) for number in wanted)
    (error,) = met
    assert isinstance(error, BodyError)
    assert error.entry is not None
    assert error.entry.queue_offset == BROKEN


def test_without_a_handler_the_body_fails_the_read(store: MessageStore) -> None:
    with store, pytest.raises(BodyError, match="ends early"):
        list(store.read_batches())
    with MessageStore.open(store.path) as again:  # nothing is opened where no column needs it
        (batch,) = again.read_batches(columns=["rawBody", "sysFlag"])
        assert batch.num_rows == COUNT


def inner_body(count: int) -> bytes:
    """The body of an inner batch of `count` empty messages."""
    heads = np.zeros(count, dtype=[("head", MEMBER_HEAD), ("properties", ">i2")])
    heads["head"]["total_size"] = MEMBER_HEAD.itemsize + PROPERTIES_LENGTH_SIZE
    return heads.tobytes()


def test_an_inner_batch_has_no_more_members_than_a_queue_can_count() -> None:
    bodies = pa.array([inner_body(3), inner_body(MOST_MEMBERS + 1), inner_body(MOST_MEMBERS)])
    members, broken = members_of_bodies(bodies)
    assert broken.tolist() == [1]
    assert np.bincount(members.row).tolist() == [3, 0, MOST_MEMBERS]


@pytest.mark.parametrize("flag", [int(SysFlag.COMPRESSED), ZLIB])
def test_gzip_under_the_flag_is_opened(flag: int) -> None:
    """As some clients store it. A zlib stream begins otherwise."""
    body = b"a body " * 100
    stored = gzip.compress(body)
    assert decompress(stored, flag) == body
    with pytest.raises(BodyError, match="ends early"):
        decompress(stored[:-10], flag)
    with pytest.raises(BodyError, match="exceeds the limit"):
        decompress(stored, flag, max_body_bytes=len(body) - 1)
    with pytest.raises(BodyError, match="does not decompress"):
        decompress(b"\x1f\x8b" + body, flag)


@pytest.mark.parametrize(
    ("kind", "pack"),
    [
        (SysFlag.COMPRESSION_LZ4, lz4.frame.compress),
        (SysFlag.COMPRESSION_ZSTD, zstandard.ZstdCompressor(write_content_size=False).compress),
    ],
)
def test_a_body_of_several_frames_is_all_of_them(kind: int, pack: Callable[[bytes], bytes]) -> None:
    """As CompressorFactory of 5.3.3 and 5.5.0 reads LZ4 and zstd. The limit is of the sum, and each byte is
    of a frame."""
    flag, body = int(SysFlag.COMPRESSED | kind), b"a body " * 9_000
    frames = [pack(body[:500]), pack(b""), pack(body[500:40_000]), pack(body[40_000:])]
    stored = b"".join(frames)
    assert decompress(stored, flag) == body
    assert decompress(stored, flag, max_body_bytes=len(body)) == body
    with pytest.raises(BodyError, match="exceeds the limit"):
        decompress(stored, flag, max_body_bytes=len(body) - 1)
    for cut in (stored[:-3], stored + frames[0][:2]):
        with pytest.raises(BodyError, match="ends early"):
            decompress(cut, flag)
    with pytest.raises(BodyError, match="does not decompress"):
        decompress(stored + b"no frame", flag)
