"""config/: both layouts of the broker's JSON, the .bak, and files that are broken."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from rmq_store.config.broker_conf import StoreConfig, paths_in
from rmq_store.config.consumer_offsets import read_consumer_offsets
from rmq_store.config.topics_json import read_topic_configs
from rmq_store.errors import CorruptConfigError, InvalidArgumentError, MissingFileError
from tests.support.golden import unpack

FASTJSON_1 = (
    '{\n\t"offsetTable":{\n\t\t"T@g":{0:25,1:26\n\t\t},\n\t\t"%RETRY%g@g":{0:3\n\t\t}\n\t}\n}'
)
FASTJSON_2 = (
    '{\n\t"offsetTable":{\n\t\t"T@g":{\n\t\t\t0:25,\n\t\t\t1:26\n\t\t},'
    '\n\t\t"%RETRY%g@g":{\n\t\t\t0:3\n\t\t}\n\t}\n}'
)
COMMITTED = {"g": {"T": {0: 25, 1: 26}, "%RETRY%g": {0: 3}}}


def put_config(store: Path, **files: str) -> None:
    (store / "config").mkdir(exist_ok=True)
    for name, text in files.items():
        (store / "config" / name.replace("_", ".")).write_text(text, "utf-8")


@pytest.mark.parametrize("text", [FASTJSON_1, FASTJSON_2], ids=["fastjson", "fastjson2"])
def test_integer_keys_without_quotes_are_read_in_both_layouts(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(text)  # the standard parser does not take it
    put_config(tmp_path, consumerOffset_json=text)
    assert read_consumer_offsets(tmp_path) == COMMITTED


def test_digits_and_braces_inside_strings_are_left_alone(tmp_path: Path) -> None:
    attributes = {"x": ',5:"{6:', "y": "\\"}
    config = {"topicConfigTable": {"a": {"topicName": "{1:2,3:4}", "attributes": attributes}}}
    tricky = json.dumps(config, separators=(",", ":"))
    put_config(tmp_path, topics_json=tricky)
    settings = read_topic_configs(tmp_path)["a"]
    assert settings == {"topicName": "{1:2,3:4}", "attributes": attributes}


@pytest.mark.parametrize("broken", [None, "", "{", '{"offsetTable":{"T@g":{0:2'])
def test_the_bak_is_read_where_a_config_file_is_missing_empty_or_cut(
    tmp_path: Path, broken: str | None
) -> None:
    put_config(tmp_path, consumerOffset_json_bak=FASTJSON_1)
    if broken is not None:
        put_config(tmp_path, consumerOffset_json=broken)
    assert read_consumer_offsets(tmp_path) == COMMITTED


def test_config_files_that_are_all_broken_are_our_error(tmp_path: Path) -> None:
    put_config(tmp_path, consumerOffset_json="{", consumerOffset_json_bak="")
    with pytest.raises(CorruptConfigError) as caught:
        read_consumer_offsets(tmp_path)
    assert caught.value.path == str(tmp_path / "config" / "consumerOffset.json")


def test_lmq_offsets_stand_in_a_file_of_their_own(tmp_path: Path) -> None:
    text = '{"lmqOffsetTable":{"%LMQ%device@g":7},"offsetTable":{"T@g":{0:25,1:26}}}'
    put_config(tmp_path, lmqConsumerOffset_json=text)
    assert read_consumer_offsets(tmp_path) == {"g": {"T": {0: 25, 1: 26}, "%LMQ%device": {0: 7}}}


def test_settings_that_are_not_there_are_said_to_be_and_not_to_have_expired(tmp_path: Path) -> None:
    store = unpack("crc-5.5.0", tmp_path)
    conf = tmp_path / "brokr.conf"
    with pytest.raises(MissingFileError, match="configuration file does not exist") as reported:
        store.open(broker_conf=str(conf))
    assert reported.value.path == str(conf)
    assert "expired" not in str(reported.value)


def test_a_file_that_a_broker_is_writing_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first version of a file, which has no .bak, is written in pieces."""
    folder = tmp_path / "config"
    folder.mkdir()
    path = folder / "consumerOffset.json"
    path.write_text('{"offsetTable": {"orders@g": {0:')

    def written(seconds: float) -> None:
        path.write_text('{"offsetTable": {"orders@g": {0:7}}}')

    monkeypatch.setattr("rmq_store.config.json_files.time", SimpleNamespace(sleep=written))
    assert read_consumer_offsets(tmp_path) == {"g": {"orders": {0: 7}}}


def test_a_configuration_is_read_as_java_reads_properties(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "# a comment \\\nbrokerName=broker\\-a\nfileReservedTime = 0\n"
        "storePathCommitLog=/data/a,\\\n    /data/b\ndeleteWhen: 05\n",
        "utf-8",
    )
    config = StoreConfig.read(conf)
    assert config.brokerName == "broker-a"
    assert (config.fileReservedTime, config.deleteWhen) == (0, "05")
    assert StoreConfig.of({"flushCommitLogLeastPages": 0}).flush_pages_log == 0
    assert paths_in(config.storePathCommitLog) == ["/data/a", "/data/b"]
    conf.write_text("storePathRootDir=C:\\users\n", "utf-8")
    with pytest.raises(CorruptConfigError, match="Properties cannot read"):
        StoreConfig.read(conf)


DEFAULT, FALSE, NOTHING = "takes its default", "reads it as false", "Correct the value"


# What MixAll#properties2Object of 5.5.0 makes of each.
@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("mappedFileSizeCommitLog=131072 ", DEFAULT),
        ("maxIndexNum=1_000", DEFAULT),
        ("mappedFileSizeCommitLog=9999999999", DEFAULT),
        ("timerWheelEnable=true ", FALSE),
        ("enableCompaction=yes", FALSE),
        ("maxIndexNum=-5", NOTHING),
        ("maxIndexNum=0", NOTHING),
    ],
)
def test_a_value_that_a_broker_reads_otherwise_is_refused(
    tmp_path: Path, line: str, advice: str
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerName=a \nmaxHashSlotNum=+200\n{line}\n", "utf-8")
    with pytest.raises(CorruptConfigError) as refused:
        StoreConfig.read(conf)
    said = refused.value.advice or ""
    assert NOTHING in said
    assert [each for each in (DEFAULT, FALSE) if each in said] == [advice] * (advice != NOTHING)
    conf.write_text("brokerName=a \nmaxHashSlotNum=+200\n", "utf-8")
    config = StoreConfig.read(conf)
    assert (config.brokerName, config.maxHashSlotNum) == ("a", 200)


def test_a_blank_beside_a_comma_is_a_part_of_a_path(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    for paths in ("/data/a, /data/b", "/data/a ,/data/b"):
        conf.write_text(f"storePathCommitLog={paths}\n", "utf-8")
        with pytest.raises(CorruptConfigError, match="without blanks beside the commas"):
            StoreConfig.read(conf)
        with pytest.raises(InvalidArgumentError, match="storePathCommitLog has a blank"):
            StoreConfig.of({"storePathCommitLog": paths})
