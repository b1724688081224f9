"""Files of config/ that hands may have written, read as the classes of three releases read them.

`answers_of_brokers.json` has what ReadConfig.java, with the classes of 4.9.7 and 5.3.3 (fastjson 1) and of
5.5.0 (fastjson 2), answered for each text: what was read, or null for a text that leaves the .bak.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rmq_store.config import json_files
from rmq_store.config.consumer_offsets import (
    committed_pulled_and_popped_offsets,
    read_delay_offsets,
)
from rmq_store.config.topics_json import read_topic_configs

ANSWERS = Path(__file__).with_name("answers_of_brokers.json")
CASES: list[dict[str, Any]] = json.loads(ANSWERS.read_text("utf-8"))
RELEASES = ("4.9.7", "5.3.3", "5.5.0")
BAK = {
    "topics.json": '{"topicConfigTable":{"BAK":{"topicName":"BAK"}}}',
    "consumerOffset.json": '{"offsetTable":{"BAK@g":{0:49}}}',
    "lmqConsumerOffset.json": '{"lmqOffsetTable":{"BAK@g":49}}',
    "delayOffset.json": '{"offsetTable":{17:49}}',
    "consumerOrderInfo.json": '{"table":{"BAK@g":{0:{"o":[48]}}}}',
}


NUMBERS = {"readQueueNums": 16, "writeQueueNums": 16, "perm": 6}  # TopicConfig's own

# JSON that all releases read, and this project uses the .bak, which it says: nobody writes it.
REFUSED = (
    '{"offsetTable":{"T@g":{0:9223372036854775808.0}}}',
    '{"topicConfigTable":{"a":{"topicName":"a","readQueueNums":1,"ReadQueueNums":3}}}',
    '{"table":{"T@g":{0:{"o":[5,true]}}}}',
    '{"table":{"T@g":{0:{"o":[null]}}}}',
    '{"table":{"T@g":{0:{"o":[5,null]}}}}',
)
# Releases do not agree on these, because of names or a null that no release writes.
READ = (
    '{"offset table":{"T@g":{0:5}}}',
    '{"isOffsetTable":{"T@g":{0:5}}}',
    '{"offsetTable ":{"T@g":{0:5}}}',
    '{" offsetTable":{"T@g":{0:5}}}',
    '{"offset.table":{"T@g":{0:5}}}',
    '{"x":{1:{2:3}},"offsetTable":{"T@g":{0:5}}}',
    '{"x":{1:2},"offsetTable":{"T@g":{0:5}}}',
    '{"@type":"java.util.HashMap","offsetTable":{"T@g":{0:5}}}',
    '{"topicConfigTable":{"a":{"topicName":"a","unknown":{1:2}}}}',
    '{"topicConfigTable":{"a":{"topicName":"a","perm":null}}}',
    '{"topicConfigTable":{"a":{"topicName":"a","readQueueNums":1,"readQueueNums":2}}}',
)


def is_json(text: str) -> bool:
    """Whether a text is JSON once its whole numbers before a colon have quotes, as brokers write it."""
    text = text.strip(" \t\r\n\f\b\x1a\0").removeprefix("\ufeff").strip(" \t\r\n\f\b\x1a\0")
    try:
        json.loads(re.sub(r"([{,]\s*)(-?[0-9]+)(\s*:)", r'\1"\2"\3', text), strict=False)
    except ValueError:
        return False
    return True


def ours(store: Path, name: str) -> Any:
    """What this project reads, in the form of the brokers' answers."""
    if name == "topics.json":
        return {
            topic: NUMBERS
            | {one: n for one, n in found.items() if one in NUMBERS and n is not None}
            for topic, found in read_topic_configs(store).items()
        }
    if name == "delayOffset.json":
        levels = read_delay_offsets(store)
        return {str(queue_id + 1): offset for queue_id, offset in levels.items()}
    found: dict[str, Any] = {}
    kinds = ("pop",) if name == "consumerOrderInfo.json" else ("consumer", "lmq")
    for kind, _, group, queue, offset in committed_pulled_and_popped_offsets(store):
        if kind in kinds:
            found.setdefault(f"{queue.topic}@{group}", {})[str(queue.queue_id)] = offset
    return found


def expected(case: dict[str, Any]) -> list[Any]:
    """The answers of the releases that have a class for the file, in the form of `ours`."""
    answers = [case[release] for release in RELEASES if case[release] != "none"]
    return [None if answer is None else in_form(case, answer) for answer in answers]


def in_form(case: dict[str, Any], answer: dict[str, Any]) -> Any:
    name = case["file"]
    if name == "topics.json":
        return {topic: {one: found[one] for one in NUMBERS} for topic, found in answer.items()}
    if name == "lmqConsumerOffset.json":
        return {key: {"0": offset} for key, offset in answer.items()}
    if name == "consumerOrderInfo.json":
        return {
            key: {
                queue: end_of(listed)
                for queue, listed in queues.items()
                if listed and None not in listed
            }
            for key, queues in answer.items()
            if any(queues.values())
        }
    return {
        key: offsets for key, offsets in answer.items() if offsets or name != "consumerOffset.json"
    }


def end_of(listed: list[int]) -> int:
    """The queue offset after the last one: the first stands as it is, the others as distances."""
    return max([listed[0], *(listed[0] + one for one in listed[1:])]) + 1


@pytest.mark.parametrize("case", CASES, ids=[f"{n}" for n in range(len(CASES))])
def test_what_all_releases_read_alike_is_read_so_and_else_the_bak(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_files, "_WRITTEN_WITHIN_S", 0.001)
    path = tmp_path / "config" / case["file"]
    path.parent.mkdir()
    path.write_text(case["text"], "utf-8")
    Path(f"{path}.bak").write_text(BAK[case["file"]], "utf-8")
    answers = expected(case)
    agreed = case["5.3.3"] == case["5.5.0"] and all(answer == answers[0] for answer in answers)
    alike = answers[0] if agreed else None
    if case["text"] in READ:
        assert ours(tmp_path, case["file"]) in answers
        return
    if alike is None or case["text"] in REFUSED or not is_json(case["text"]):
        path.unlink()  # the .bak alone
        alike = ours(tmp_path, case["file"])
        path.write_text(case["text"], "utf-8")
    assert ours(tmp_path, case["file"]) == alike, case["text"]
