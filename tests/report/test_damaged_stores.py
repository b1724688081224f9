"""Reports of stores that are damaged, crashed, being written, empty or without configuration."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rmq_store.report.page import html_of
from rmq_store.report.section import Inquiry, ReadLimits, Section
from rmq_store.report.store_report import _SECTIONS, store_report
from tests.config.test_lock_state import another_process_holding
from tests.report.conftest import MakePage
from tests.support.damage import write_in_log
from tests.support.golden import Golden, GoldenStore, unpack
from tests.support.running.commands import call, complaint


@pytest.mark.usefixtures("_no_plots")
def test_one_damaged_system_topic_does_not_end_the_report(tmp_path: Path, report: MakePage) -> None:
    store = unpack("clean-4.9.7", tmp_path)
    letter = next(one for one in store.truth if one["topic"].startswith("%DLQ%"))
    write_in_log(store, letter["commitLogOffset"] + 4, bytes(4))  # the magic number
    page = report(store.path)
    assert page.done.returncode == 1
    assert "could not be made: Dead letters, Retries" in page.done.stderr
    for anchor in ("dead-letters", "retries"):
        text = page.text(anchor)
        assert "This section could not be made: [RMQSTORE_CORRUPT_RECORD]" in text
        assert f"rmqstore verify {store.path}" in text
        assert "RMQSTORE_CORRUPT_RECORD" in page.text("unseen")
    assert len(page.rows("open-transactions")) == 10
    assert page.rows("by-topic")
    checked = report(store.path, "--verify")
    assert checked.done.returncode == 1
    assert "log-damaged" in [row["code"] for row in checked.rows("findings")]
    assert "The whole log was checked" in checked.text("damage")
    assert "not verified" not in checked.text("facts")
    assert any(text.startswith("log-damaged: ") for text in checked.remarks)
    assert "The records and their checksums" not in checked.text("unseen")


@pytest.mark.usefixtures("_no_plots")
def test_a_store_that_lost_its_queues_still_has_its_facts(
    tmp_path: Path, report: MakePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_store.snapshot.undispatched_records.MOST_UNDISPATCHED", 500)
    store = unpack("clean-5.5.0", tmp_path)
    shutil.rmtree(Path(store.path, "consumequeue"))
    shutil.rmtree(Path(store.path, "batchconsumequeue"))
    page = report(store.path)
    assert page.done.returncode == 1
    assert page.rows("facts-of-store")[0]["value"] == store.path
    for anchor in ("files", "damage", "space", "lag", "largest"):
        assert "RMQSTORE_UNDISPATCHED" in page.text(anchor), anchor


@pytest.mark.usefixtures("_no_plots")
def test_a_crashed_store_says_so(golden: Golden, report: MakePage) -> None:
    store = golden("crash-5.3.3")
    page = report(store.path)
    assert page.done.returncode == 0
    (said,) = (text for text in page.remarks if "not closed cleanly" in text)
    assert said.endswith("it has the file abort, and the broker's next start recovers it")
    assert page.remarks[said] == "warning"
    assert f"rmqstore recover {store.path}" in page.commands


@pytest.mark.usefixtures("_no_plots")
def test_a_store_that_is_being_written_says_so(tmp_path: Path, report: MakePage) -> None:
    store = unpack("crash-5.3.3", tmp_path)
    Path(store.path, "lock").unlink(missing_ok=True)
    with another_process_holding(store.path):
        page = report(store.path)
    texts = [text for text in page.remarks if "has the store open" in text]
    assert {page.remarks[text] for text in texts} == {"note"}
    assert not any("not closed cleanly" in text for text in page.remarks)


@pytest.mark.usefixtures("_no_plots")
def test_an_empty_store_and_one_without_config(
    golden: Golden, tmp_path: Path, report: MakePage
) -> None:
    (tmp_path / "empty" / "commitlog").mkdir(parents=True)
    page = report(str(tmp_path / "empty"))
    assert page.done.returncode == 0, page.done.both
    assert "No queue has a message." in page.text("rate")
    assert "No queue has a message." in page.text("largest")
    assert page.text("transactions").startswith("Transactions No half message is left.")
    assert "config/consumerOffset.json" in page.text("lag")
    without = report(golden("direct-5.5.0").path)
    assert "No group has committed an offset" in without.text("lag")
    assert "is not there" in without.text("lag")


@pytest.mark.usefixtures("_no_plots")
def test_what_would_take_long_is_left_out_and_the_report_says_so(golden: Golden) -> None:
    store = golden("clean-4.9.7")
    html = html_of(store_report(store.path, bounds=ReadLimits(200, 5, 3, 0), now_ms=1 << 40))
    for said in (
        "with more than 11 messages are estimated from samples; the store has 1,550 messages",
        "Only the newest 11 messages of each queue were looked at",
        "groups have 7 offsets, and a report reads 3",
        "hold 39 such messages, and a report reads 5",
        "hold 6 such messages, and a report reads 5",
        "Only the newest 5 of 13 dead letters were read",
    ):
        assert html.count(said) == 2, said  # in its section, and where all of these are listed
    every = store_report(store.path, bounds=ReadLimits(200, 5, 3, 0), everything=True)
    assert not [text for section in every.sections for text in section.unseen]
    (unseen,) = store_report(store.path, bounds=ReadLimits(verified=0)).sections[2].unseen
    assert "checksums" in unseen
    index = store_report(store.path, bounds=ReadLimits(bytes_without_index=0))
    assert index.failed == []
    (left_out,) = {one.missing.reason for one in index.sections if one.missing}
    assert "bytes of the log have no index" in left_out


@pytest.mark.usefixtures("_no_plots")
def test_many_findings_of_a_section_are_counted(copy: GoldenStore) -> None:
    offsets = ",".join(f'"orders@group-{number:02}":{{"0":999999}}' for number in range(25))
    path = Path(copy.path, "config", "consumerOffset.json")
    path.write_text(f'{{"offsetTable":{{{offsets}}}}}')
    made = store_report(copy.path, bounds=ReadLimits(verified=0))
    (damage,) = (one for one in made.sections if one.anchor == "damage")
    assert len(damage.remarks) == 11
    assert damage.remarks[-1].text == "15 more findings are in the section Damage"
    assert len(damage.grids[0].rows) == 25
    (one,) = (one for one in store_report(copy.path).sections if one.anchor == "damage")
    assert [remark.text.partition(":")[0] for remark in one.remarks] == [
        "consumer-ahead (25 places)"
    ]
    assert len(one.grids[0].rows) == 25


@pytest.mark.campaign
def test_the_same_store_gives_the_same_page(golden: Golden) -> None:
    store = golden("crash-5.3.3")
    pages = {html_of(store_report(store.path, now_ms=1_800_000_000_000)) for _ in range(2)}
    assert len(pages) == 1


@pytest.mark.usefixtures("_no_plots")
def test_where_a_report_may_be_written(tmp_path: Path, golden: Golden) -> None:
    store = golden("crash-5.3.3").path
    target = tmp_path / "report.html"
    target.write_text("my own page")
    assert "is not a report" in complaint("report", store, "-o", str(target), expect=2)
    assert target.read_text() == "my own page"
    assert call("report", store, "-o", str(target), "--overwrite").returncode == 0
    first = target.read_text("utf-8")
    assert call("report", store, "-o", str(target)).returncode == 0
    assert target.read_text("utf-8") != first  # it has another time
    inside = f"{store}/config/report.html"
    assert "into the store" in complaint("report", store, "-o", inside, expect=2)
    nowhere = str(tmp_path / "no" / "report.html")
    assert "folder does not exist" in complaint("report", store, "-o", nowhere, expect=2)
    assert "is a folder" in complaint("report", store, "-o", str(tmp_path), expect=2)
    nothing, other = tmp_path / "nothing", str(tmp_path / "other.html")
    assert "NOT_A_STORE" in complaint("report", str(nothing), "-o", other, expect=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html"]


def with_time(store: GoldenStore, time: int, places: range) -> None:
    """Of the records that begin in a range of the log."""
    for record in store.truth:
        at = record["commitLogOffset"]
        if at in places:
            write_in_log(store, at + 56, (time % (1 << 64)).to_bytes(8, "big"))  # storeTimestamp


@pytest.mark.parametrize("time", [253_402_300_800_000, 2**62, 2**63 - 1, -(2**62), 0])
@pytest.mark.usefixtures("_no_plots")
def test_a_damaged_time_costs_no_report(tmp_path: Path, report: MakePage, time: int) -> None:
    store = unpack("clean-5.4.0", tmp_path)
    with_time(store, time, range(1))
    page = report(store.path)
    assert page.done.returncode in (0, 1)
    assert page.rows("by-topic")


@pytest.mark.parametrize("places", [range(1), range(300_000, 340_000)])
@pytest.mark.usefixtures("_no_plots")
def test_a_clock_that_jumped_makes_no_rate(tmp_path: Path, report: MakePage, places: range) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    last = store.truth[-1]["storeTimestamp"]
    with_time(store, last + 3 * 86_400_000, places)
    page = report(store.path)
    assert "not in the order of their store times" in page.text("rate")
    assert "Messages by time" in page.text("unseen")


def test_a_log_of_zeros_gives_a_report(tmp_path: Path, report: MakePage) -> None:
    store = unpack("clean-5.4.0", tmp_path)
    for path in Path(store.path, "commitlog").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    page = report(store.path)
    assert page.done.returncode in (0, 1)
    assert "not in the order of their store times, or have none" in page.text("rate")


def test_a_report_is_not_written_beside_the_log(copy: GoldenStore, tmp_path: Path) -> None:
    log = Path(copy.path, "commitlog")
    log.rename(tmp_path / "disk")
    log.symlink_to(tmp_path / "disk")
    (tmp_path / "conf").write_text(f"storePathCommitLog={tmp_path}/disk\n")
    for words in (
        ["-o", f"{log}/x.html"],
        ["-o", f"{tmp_path}/disk/x.html", "--broker-conf", f"{tmp_path}/conf"],
    ):
        assert "not written into the store" in complaint("report", copy.path, *words, expect=2)


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    store = unpack("clean-5.4.0", tmp_path)
    os.mkfifo(tmp_path / "x")
    words = ["report", store.path, "-o", f"{tmp_path}/x", "--overwrite"]
    assert "not a regular file" in complaint(*words, expect=2)
    assert (tmp_path / "x").is_fifo()


def test_without_its_libraries_it_names_what_to_install(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_store.errors.find_spec", lambda name: None)
    target = str(tmp_path / "report.html")
    said = complaint("report", golden("crash-5.3.3").path, "-o", target, expect=2)
    assert "[RMQSTORE_REPORT_UNAVAILABLE] a report needs jinja2 and matplotlib" in said
    assert "pip install 'rmqstore[report]'" in said


@pytest.mark.usefixtures("_no_plots")
def test_a_fault_of_any_kind_costs_one_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Inquiry) -> Section:
        raise AttributeError("no such thing")

    store = unpack("clean-5.5.0", tmp_path)
    asked = [one._replace(make=broken) if one.anchor == "lag" else one for one in _SECTIONS]
    monkeypatch.setattr("rmq_store.report.store_report._SECTIONS", asked)
    made = store_report(store.path)
    missing = [one for one in made.sections if one.missing is not None]
    assert [one.anchor for one in missing] == ["lag"]
    assert "AttributeError('no such thing')" in str(missing[0].missing)
