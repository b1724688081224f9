"""What errors and findings say of a broken or missing file of the broker: one table, which a page shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmq_store import QueueId
from rmq_store.config.consumer_offsets import read_consumer_offsets, read_delay_file
from rmq_store.config.json_files import read_config, undecoded
from rmq_store.config.topics_json import topic_configs_to_change
from rmq_store.config.without_file import EFFECTS, effect_without
from rmq_store.errors import CorruptConfigError
from rmq_store.markers import read_timer_check
from rmq_store.verify import Finding
from tests.support.checkout import CHECKOUT
from tests.support.damage import write_at, write_in_log
from tests.support.golden import GoldenStore, unpack, verified

JSON = [name for name in EFFECTS if name.endswith(".json")]
READERS = {
    "topics.json": topic_configs_to_change,
    "consumerOffset.json": read_consumer_offsets,
    "delayOffset.json": read_delay_file,
    "timercheck": read_timer_check,
}
REFUSES = "No broker starts while neither can be read"


def found(store: Path, code: str, name: str) -> Finding:
    (one,) = [
        one for one in verified(store).findings if one.code == code and one.path.endswith(name)
    ]
    return one


def test_the_page_has_the_table() -> None:
    page = (CHECKOUT / "docs/format-config.md").read_text("utf-8")
    assert "".join(f"| `{name}` | {effect} |\n" for name, effect in EFFECTS.items()) in page


@pytest.mark.parametrize("name", READERS)
def test_an_error_says_what_a_broker_does_without_the_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config" / name
    path.parent.mkdir()
    path.write_bytes(b"{")
    with pytest.raises(CorruptConfigError) as refused:
        READERS[name](tmp_path)
    assert (refused.value.advice or "").endswith(f"a broker that starts without it {EFFECTS[name]}")
    assert "move it away" not in str(refused.value)


@pytest.mark.parametrize("name", JSON)
@pytest.mark.parametrize(
    ("content", "backup", "refuses"),
    [
        (b"{", b"{", True),
        (b"", b"{", True),
        (b"{", b"", False),
        (b"", b"", False),
        (b"{", None, False),
    ],
)
def test_a_broker_does_not_start_on_two_broken_files(
    name: str, content: bytes, backup: bytes | None, refuses: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / name).write_bytes(content)
    if backup is not None:
        (folder / f"{name}.bak").write_bytes(backup)
    with pytest.raises(CorruptConfigError) as refused:
        read_config(tmp_path, name, undecoded)
    assert (REFUSES in str(refused.value)) is refuses
    assert EFFECTS[name] in str(refused.value)


def test_the_name_of_a_backup_is_that_of_its_file() -> None:
    assert effect_without("store/config/delayOffset.json.bak") == EFFECTS["delayOffset.json"]
    assert effect_without("other.json") == "starts as if the file was empty"


@pytest.mark.parametrize("is_gone", [True, False])
def test_verify_says_how_many_delayed_messages_may_come_again(
    is_gone: bool, copy: GoldenStore
) -> None:
    for path in Path(copy.path, "config").glob("delayOffset.json*"):
        if is_gone:
            path.unlink()
        else:
            path.write_text("{")
    code = "config-missing" if is_gone else "config-unreadable"
    finding = found(Path(copy.path), code, "delayOffset.json")
    said = f"{finding.meaning}. {finding.advice}"
    count = sum(row["topic"] == "SCHEDULE_TOPIC_XXXX" for row in copy.truth)
    assert EFFECTS["delayOffset.json"] in said
    assert f"It has {count} delayed messages" in said


def test_a_queue_that_the_log_has_no_record_of_is_not_said_to_be_one_that_a_rebuild_lists(
    copy: GoldenStore,
) -> None:
    """As on a slave behind its master: the offsets of groups come first."""
    offsets = Path(copy.path, "config/consumerOffset.json")
    assert '"retrying@' in offsets.read_text()
    offsets.write_text(offsets.read_text().replace('"retrying@', '"TBW102@'))  # declared, and empty
    findings = [one for one in copy.verified().findings if one.code == "consumer-ahead"]
    assert findings
    assert all("On a slave, wait" in (one.advice or "") for one in findings)


@pytest.mark.parametrize(("name", "is_said"), [("hours-crash-5.5.0", True), ("clean-5.5.0", False)])
def test_a_broker_that_takes_the_newest_files_alone_is_not_said_to_list_all(
    name: str, is_said: bool, tmp_path: Path
) -> None:
    """Of the first store a broker of 5.4.0 or later never lists 302 messages."""
    golden = unpack(name, tmp_path)
    Path(golden.path, "abort").touch()
    for queue in Path(golden.path, "consumequeue/orders").iterdir():
        shutil.rmtree(queue)
    said = " alone, unless commitLogRecoverMaxNum in its broker.conf is larger"
    with golden.open() as store:
        assert store.opening.behind is not None
        assert (said in store.opening.behind) is is_said
    advice = [f.advice or "" for f in golden.verified().findings if f.code == "not-dispatched"]
    assert advice
    assert any(said in text for text in advice) is is_said


def test_a_hole_among_the_waiting_messages_is_not_far_behind(tmp_path: Path) -> None:
    """Its entry leads nowhere; the messages around it are in the newest files."""
    golden = unpack("days-crash-5.5.0", tmp_path)
    last = [r for r in golden.truth if (r["topic"], r["queueId"]) == ("orders", 0)][-3:]
    folder = Path(golden.path, "consumequeue/orders/0")
    for record in last:
        at = record["queueOffset"] * 20
        file = max(path for path in folder.iterdir() if int(path.name) <= at)
        write_at(file, at - int(file.name), bytes(20))
    write_in_log(golden, last[1]["commitLogOffset"] + 4, b"\xff" * 4)  # its magic
    with golden.open() as store:
        tail = store.snapshot().queues[QueueId("orders", 0)].tail
        assert tail is not None
        assert tail.log_offset.tolist() == [
            last[0]["commitLogOffset"],
            -1,
            last[2]["commitLogOffset"],
        ]
        assert len(store.log.chain.segments) > 10
        assert "commitLogRecoverMaxNum" not in (store.opening.behind or "commitLogRecoverMaxNum")
