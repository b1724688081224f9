"""What real brokers make of a crashed store's index: verify has nothing to say about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store.testing.live_broker.harness import boot_copy
from rmq_store.testing.live_broker.needs import need_jars
from tests.support.golden import unpack, verified
from tests.support.live_brokers import golden_conf
from tests.support.running.campaigns import some

pytestmark = pytest.mark.live


@pytest.mark.parametrize("release", some("index of brokers", ["5.5.0", "4.9.7"], 2))
def test_an_index_that_a_broker_went_on_with_is_sound(tmp_path: Path, release: str) -> None:
    """Killed, started again, closed in order: what it kept, and what it wrote behind that."""
    need_jars(release)
    store = unpack(f"crash-{release}", tmp_path)
    before = {path.name for path in Path(store.path, "index").iterdir()}
    with boot_copy(
        Path(store.path), tmp_path / "run", release, golden_conf(Path(store.conf))
    ) as broker:
        broker.stop()
    copy = tmp_path / "run" / "store"
    assert not (copy / "abort").exists()
    assert before & {path.name for path in (copy / "index").iterdir()}
    report = verified(copy, broker_conf=store.conf)
    assert report.index
    index = {one.code for one in report.findings if one.code.startswith("index-")}
    assert index <= {"index-gap"}  # the broker drops its newest file
