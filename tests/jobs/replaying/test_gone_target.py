"""A finished replay whose target is gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmqstore_jobs import replay
from rmqstore_jobs.running.job_command import EXIT_REFUSED
from tests.support.golden import Golden

NAME = "clean-5.5.0"


def test_a_finished_replay_whose_target_is_gone_says_so(
    golden: Golden, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [golden(NAME).path, "--to", str(tmp_path / "r"), "--topic", "retrying"]
    assert replay.main(words) == 0
    shutil.rmtree(tmp_path / "r")
    assert replay.main(words) == EXIT_REFUSED
    said = " ".join(capsys.readouterr().err.split())
    assert "is gone" in said
    assert f"Delete {tmp_path}/r.replay.json to replay again" in said
