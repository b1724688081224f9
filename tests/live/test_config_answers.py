"""The recorded answers of brokers about files of config/ are what their classes say."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

import pytest

from rmq_store.testing.live_broker.java import class_path, jdk_tool
from rmq_store.testing.live_broker.needs import need_jars
from tests.config.test_answers_of_brokers import CASES, RELEASES

pytestmark = [pytest.mark.live, pytest.mark.campaign]

SOURCE = Path(__file__).resolve().parent / "ReadConfig.java"


@pytest.mark.parametrize("release", RELEASES)
def test_the_classes_of_a_release_answer_as_recorded(release: str) -> None:
    need_jars(release)
    texts = (base64.b64encode(case["text"].encode()).decode() for case in CASES)
    asked = [f"{case['file']}\t{text}\n" for case, text in zip(CASES, texts, strict=True)]
    done = subprocess.run(
        [jdk_tool("java"), "-cp", class_path(SOURCE, release), "ReadConfig"],
        input="".join(asked),
        capture_output=True,
        text=True,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers == [case[release] for case in CASES]
