"""Both forms of the properties that a replay writes: stored strings with the origin at their end, and
the map of all properties, from which some may have to go."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rmq_store.arrow.column_definitions import BY_NAME
from rmq_store.arrow.encoding.properties import property_strings
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import InvalidMessageError
from rmq_store.format.byte_layout import CRC_PROPERTY
from rmq_store.format.record import crc_item, decode_properties
from rmq_store.format.releases import dialect
from rmqstore_jobs.replay_targets.replay_call import _as_written_by, batch_to_append
from rmqstore_jobs.replaying.replay_question import ORIGIN, with_origin
from tests.support.encode_record import encode_properties
from tests.support.golden import STORES, Golden
from tests.support.running.campaigns import some

RELEASES = ("4.5.2", "4.9.7", "5.1.4", "5.5.0")
STORED = ("flag", "sysFlag", "bornTimestamp", "bornHost", "reconsumeTimes", "rawBody")
COLUMNS = tuple(dict.fromkeys((*ORIGIN.values(), *STORED)))


def written(batch: pa.RecordBatch, release: str) -> tuple[str, list[bytes]]:
    """The form that a replay chose, and the strings that a store of `release` gets."""
    name, properties = with_origin(batch, ())
    names = [name if n in ("properties", "rawProperties") else n for n in batch.schema.names]
    arrays = [properties if n == name else batch[n] for n in names]
    changed = pa.RecordBatch.from_arrays(arrays, names=names)
    columns = batch_to_append(changed, dialect(release), keep_timestamps=False, members=False)
    by_name = dict(zip(columns.schema.names, columns.columns, strict=True))
    return name, property_strings(by_name, dialect(release), StoreConfig()).to_pylist()


def is_regular(stored: bytes) -> bool:
    """Whether a broker would encode the decoded properties to the same string."""
    again = encode_properties(
        decode_properties(stored), last_separator=stored.endswith(b"\x02") or not stored
    )
    return again == stored


@pytest.mark.campaign
@pytest.mark.parametrize("name", some("origins", STORES, 4))
def test_strings_and_map_of_a_brokers_messages_say_the_same(untouched: Golden, name: str) -> None:
    regular = 0
    with untouched(name).open() as store:
        batches = store.read_batches(
            columns=(*COLUMNS, "properties", "rawProperties"), include_system_topics=True
        )
        for batch in batches:
            for release in RELEASES:
                strings = written(batch.drop_columns(["properties"]), release)[1]
                of_map = written(batch.drop_columns(["rawProperties"]), release)[1]
                assert [decode_properties(one) for one in strings] == [
                    decode_properties(one) for one in of_map
                ]
                for stored, mine, other in zip(
                    batch["rawProperties"].to_pylist(), strings, of_map, strict=True
                ):
                    if is_regular(stored):
                        regular += 1
                        assert mine == other
    assert regular > 0


def message(topic: str, stored: bytes) -> pa.RecordBatch:
    values = {
        "brokerName": "b",
        "topic": topic,
        "queueId": 3,
        "queueOffset": 7,
        "commitLogOffset": 1000,
        "storeTimestamp": 1_700_000_000_000,
        **dict.fromkeys(("flag", "sysFlag", "bornTimestamp", "reconsumeTimes"), 0),
        "bornHost": "127.0.0.1:1",
        "rawBody": b"",
        "rawProperties": stored,
    }
    return pa.RecordBatch.from_arrays(
        [pa.array([value], BY_NAME[name].type) for name, value in values.items()],
        names=list(values),
    )


HERE = {
    "REPLAY_ORIGIN_BROKER": "b",
    "REPLAY_ORIGIN_TOPIC": "orders",
    "REPLAY_ORIGIN_QUEUE_ID": "3",
    "REPLAY_ORIGIN_QUEUE_OFFSET": "7",
    "REPLAY_ORIGIN_LOG_OFFSET": "1000",
    "REPLAY_ORIGIN_STORE_TIMESTAMP": "1700000000000",
}


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"TAGS\x01a",
        b"TAGS\x01a\x02",
        b"TAGS\x01a\x02TAGS\x01b\x02",
        b"no value\x02K\x01\xff\x02",
    ],
)
def test_a_stored_string_stays_what_it_is_before_the_origin(stored: bytes) -> None:
    form, (string,) = written(message("orders", stored), "5.5.0")
    ended = stored if not stored or stored.endswith(b"\x02") else stored + b"\x02"
    assert (form, string) == ("rawProperties", ended + encode_properties(HERE))
    assert written(message("orders", stored), "4.9.7")[1] == [string[:-1]]


@pytest.mark.parametrize(
    ("stored", "left"),
    [
        (b"TAGS\x01a\x02REPLAY_ORIGIN_TOPIC\x01older\x02", {"TAGS": "a"}),
        (b"TAGS\x01a\x02" + crc_item(5), {"TAGS": "a"}),
        (b"REPLAY_ORIGIN_BROKER\x01older\x02TAGS\x01a", {"TAGS": "a"}),
    ],
)
def test_an_older_origin_and_the_crc_of_a_record_go(stored: bytes, left: dict[str, str]) -> None:
    _, (string,) = written(message("orders", stored), "5.5.0")
    assert decode_properties(string) == {**left, **HERE}
    assert CRC_PROPERTY.encode() not in string


@pytest.mark.parametrize(
    "neighbour",
    [
        message("orders", b"TAGS\x01a\x02REPLAY_ORIGIN_TOPIC\x01older\x02"),
        message("orders", b"TAGS\x01a\x02" + crc_item(5)),
        message("%LMQ%a", b"TAGS\x01a\x02"),
    ],
    ids=["older origin", "record CRC", "light queue"],
)
def test_a_string_does_not_depend_on_its_neighbours(neighbour: pa.RecordBatch) -> None:
    stored = b"EMPTY\x01\x02K\x01\xff\x02NOTE\x01see REPLAY_ORIGIN_TOPIC and __CRC32#\x02"
    kept = message("orders", stored)
    for batches in ([kept, neighbour, kept], [neighbour, kept, neighbour]):
        both = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        form, strings = written(both, "5.5.0")
        alone = [written(batch, "5.5.0")[1][0] for batch in batches]
        assert (form, strings) == ("rawProperties", alone)
        assert alone[batches.index(kept)] == stored + encode_properties(HERE)


def test_an_origin_with_a_null_is_refused() -> None:
    batch = message("orders", b"TAGS\x01a\x02")
    at = batch.schema.get_field_index("queueOffset")
    batch = batch.set_column(at, "queueOffset", pa.nulls(1, pa.int64()))
    with pytest.raises(InvalidMessageError, match="null in its origin"):
        with_origin(batch, ())


def test_the_names_of_light_queues_go_only_from_their_own_copies() -> None:
    stored = b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02TAGS\x01a\x02"
    own = decode_properties(written(message("orders", stored), "5.5.0")[1][0])
    copied = decode_properties(written(message("%LMQ%a", stored), "5.5.0")[1][0])
    assert own["INNER_MULTI_DISPATCH"] == "%LMQ%a"
    assert copied == {**HERE, "REPLAY_ORIGIN_TOPIC": "%LMQ%a", "TAGS": "a"}


@pytest.mark.parametrize("release", RELEASES)
def test_property_strings_of_any_form_become_those_of_the_release(release: str) -> None:
    """Without properties, without a last separator, and null."""
    given = [b"A\x01b\x02", b"A\x01b", b"", None]
    ends = dialect(release).has("no_last_separator")
    expected = [b"A\x01b" if ends else b"A\x01b\x02", b"A\x01b", b"", None]
    assert _as_written_by(dialect(release), pa.array(given, pa.binary())).to_pylist() == expected
