"""Files of config/ that are gone with their .bak are named where other files show that there were some."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.admin.info import store_info, summary_of
from rmq_store.verify import verify
from tests.support.golden import KINDS, STORES, Golden, GoldenStore, unpack, unpack_kind
from tests.support.running.campaigns import some
from tests.support.running.commands import call


@pytest.mark.parametrize("name", ["topics.json", "consumerOffset.json", "delayOffset.json"])
def test_a_file_that_is_gone_with_its_bak_is_named(name: str, copy: GoldenStore) -> None:
    for file in Path(copy.path, "config").glob(f"{name}*"):
        file.unlink()
    (finding,) = copy.verified().findings
    assert (finding.code, Path(finding.path).name) == ("config-missing", name)
    assert "Restore the file " in (finding.advice or "")
    if name != "delayOffset.json":
        command = "topics" if name == "topics.json" else "lag"
        assert f"there is no {name}" in call(command, copy.path).stderr


@pytest.mark.parametrize("is_folder_kept", [False, True])
@pytest.mark.parametrize("name", ["clean-4.3.2", "clean-4.9.7", "clean-5.3.3", "crash-5.5.0"])
def test_a_store_of_a_broker_without_any_configuration_is_named(
    name: str, is_folder_kept: bool, tmp_path: Path
) -> None:
    golden = unpack(name, tmp_path)
    config = Path(golden.path, "config")
    shutil.rmtree(config)
    if is_folder_kept:
        config.mkdir()
    found = [one for one in golden.verified().findings if one.code == "config-missing"]
    assert [one.path for one in found] == [str(config)]
    assert "came through a broker" in found[0].meaning
    assert "Restore them " in (found[0].advice or "")
    assert "there is no consumerOffset.json" in call("lag", golden.path).stderr


def test_batches_at_the_ends_of_queues_do_not_hide_the_broker(tmp_path: Path) -> None:
    golden = unpack("crc-5.5.0", tmp_path)
    # The last message of each queue of orders is of a batch.
    for name in ("config", "consumequeue/payments"):
        shutil.rmtree(Path(golden.path, name))
    assert "config-missing" in {one.code for one in golden.verified().findings}


@pytest.mark.campaign
@pytest.mark.parametrize("name", some("configuration", [*STORES, *KINDS], 6))
def test_no_store_of_a_real_broker_lacks_a_file(name: str, tmp_path: Path) -> None:
    kind = name in KINDS
    golden = (unpack_kind if kind else unpack)(name, tmp_path)
    with MessageStore.open(golden.path) if kind else golden.open() as store:
        assert "config-missing" not in {one.code for one in verify(store).findings}


def test_info_counts_queues_that_only_the_log_has(golden: Golden, tmp_path: Path) -> None:
    crashed = unpack_kind("rocksdb-crash-5.5.0", tmp_path)
    unseen = "not verified: rmqstore verify STORE"
    assert dict(summary_of(store_info(crashed.path)))["queues"] == f"12; {unseen}"
    clean = store_info(golden("clean-5.5.0").path)
    assert dict(summary_of(clean))["queues"] == f"17; {unseen}"
