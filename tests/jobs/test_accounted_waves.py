"""Replays and exports of all topics account for every byte of the log, however many waves they take."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_store import StoreError
from rmqstore_jobs import export, replay
from rmqstore_jobs.replaying.plan import planned
from rmqstore_jobs.replaying.replay_journal import ReplayJournal
from rmqstore_jobs.replaying.replay_spec import ReplaySpec
from spark_source.options.parse import parse_options
from spark_source.planning.partitions import accounted_range, missing_shares
from spark_source.planning.pinned_plan import pin_all
from spark_source.spark_reader import RmqStoreReader
from spark_source.spark_types import spark_schema
from tests.snapshot.test_health import WIDTH, far_from_the_ends, forget_consumers, hurt_log
from tests.snapshot.test_uncovered_bytes import IDLE, lose_idle_end
from tests.support.exported import rows_in
from tests.support.golden import GoldenStore, Truth, unpack

WAVE = 100_000
NAME = "clean-5.3.3"


@pytest.fixture
def hurt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[GoldenStore, Truth]:
    """A store in which an idle queue lost its end, far from the ends of the log."""
    far_from_the_ends(monkeypatch)
    golden = unpack(NAME, tmp_path)
    return golden, lose_idle_end(golden)


def exported(golden: GoldenStore, target: Path, **options: str) -> Any:
    options = {"brokerName": "broker-a", **options}
    return export.run(None, export.ExportSpec(golden.path, str(target), options, wave_bytes=WAVE))


def damage_in(target: Path) -> list[tuple[str, int, int]]:
    """The rows about damage, sorted: each wave reports the records that it has."""
    bad = [row for row in rows_in(target) if row["corruptRecord"]]
    return sorted((row["topic"], row["queueId"], row["queueOffset"]) for row in bad)


def the_idle_ones(lost: Truth, found: list[tuple[str, int, int]]) -> bool:
    """Whether they are of the idle queue's lost records, none twice, and the first is among them."""
    first = lost["queueOffset"]
    allowed = [(*IDLE, first + number) for number in range(4)]
    return found[0] == allowed[0] and set(found) <= set(allowed) and len(set(found)) == len(found)


def test_a_replay_in_many_waves_fails_at_what_an_idle_queue_lost(
    hurt: tuple[GoldenStore, Truth], tmp_path: Path
) -> None:
    golden, lost = hurt
    spec = ReplaySpec(source=golden.path, to_store=str(tmp_path / "copy"), wave_bytes=WAVE)
    report = replay.run(None, spec)
    assert "at least 4 whole records of it" in str(report.stopped_by)
    assert f"log offset {lost['commitLogOffset']}" in str(report.stopped_by)


@pytest.mark.campaign
def test_a_replay_that_goes_on_accounts_for_what_remains(
    hurt: tuple[GoldenStore, Truth], tmp_path: Path
) -> None:
    golden, _ = hurt
    spec = ReplaySpec(source=golden.path, to_store=str(tmp_path / "copy"), wave_bytes=WAVE)
    assert replay.run(None, spec, lambda: True).stopped_by == "stopped on request"
    assert "at least 4 whole records of it" in str(replay.run(None, spec).stopped_by)


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_wave_for_a_broker_accounts_for_its_range_although_its_shares_are_queues(
    tasks: int, hurt: tuple[GoldenStore, Truth], tmp_path: Path
) -> None:
    from rmq_store.questions.answer_by_shares import InProcess, ask
    from rmqstore_jobs.replaying.replay_question import READ_TO_SEND, ReplayRows

    golden, _ = hurt
    spec = ReplaySpec(source=golden.path, to_broker="127.0.0.1:1", failed=str(tmp_path / "failed"))
    plan = planned(spec, None)
    question = ReplayRows.of(
        spec,
        plan,
        plan.ranges,
        lambda store, number, rows: sum(batch.num_rows for batch in rows),
        columns=READ_TO_SEND,
        tasks=tasks,
    )
    with pytest.raises(StoreError, match="at least 4 whole records of it"):
        ask(question, plan.store, InProcess())


def test_an_export_in_many_waves_has_a_row_for_what_is_lost(
    hurt: tuple[GoldenStore, Truth], tmp_path: Path
) -> None:
    golden, lost = hurt
    strict = exported(golden, tmp_path / "strict")
    assert "at least 4 whole records of it" in str(strict.stopped_by)
    answer = exported(golden, tmp_path / "lenient", mode="PERMISSIVE")
    assert answer.stopped_by is None
    assert the_idle_ones(lost, damage_in(tmp_path / "lenient"))


def test_each_damaged_stretch_that_nothing_lists_is_in_one_wave(
    hurt: tuple[GoldenStore, Truth], tmp_path: Path
) -> None:
    golden, lost = hurt
    hurt_log(golden, lost["commitLogOffset"], b"\xff" * lost["storeSize"])
    exported(golden, tmp_path / "copy", mode="PERMISSIVE")
    reasons = [r["corruptRecord"] for r in rows_in(tmp_path / "copy") if r["corruptRecord"]]
    assert sum("no queue lists all" in reason for reason in reasons) == 1
    assert len(reasons) == 2, "the other three are whole"


def test_a_later_run_accounts_for_what_came_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run stops at a wave; then an idle queue loses its end behind it."""
    far_from_the_ends(monkeypatch)
    golden = unpack(NAME, tmp_path)
    options = {"brokerName": "broker-a", "mode": "PERMISSIVE"}
    spec = export.ExportSpec(golden.path, str(tmp_path / "copy"), options, wave_bytes=WAVE)
    assert export.run(None, spec, lambda: True).stopped_by is not None
    lost = lose_idle_end(golden)
    assert export.run(None, spec).stopped_by is None
    assert the_idle_ones(lost, damage_in(tmp_path / "copy"))


@pytest.mark.parametrize(
    "changed",
    [
        {"splitBy": "queue"},
        {"splitBy": "queue", "maxBytesPerPartition": "100000"},
        {"minPartitions": "9"},
    ],
)
def test_however_spark_splits_a_query_it_has_a_row_for_what_is_lost(
    changed: dict[str, str], hurt: tuple[GoldenStore, Truth]
) -> None:
    golden, lost = hurt
    plan = pin_all(parse_options({"path": golden.path, "mode": "PERMISSIVE", **changed}))
    reader = RmqStoreReader(plan, spark_schema(permissive=True))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    bad = [row for row in rows if row["corruptRecord"]]
    assert the_idle_ones(lost, sorted((r["topic"], r["queueId"], r["queueOffset"]) for r in bad))
    topics = ("orders", "documents", "retrying")
    assert len(rows) > sum(r["topic"] in topics for r in golden.truth) - 4


def test_a_selection_by_time_accounts_for_its_range_and_no_more(
    hurt: tuple[GoldenStore, Truth],
) -> None:
    golden, _ = hurt
    last = golden.by_queue[IDLE][-1]["commitLogOffset"]
    later = [r for r in golden.truth if r["topic"] == "orders" and r["commitLogOffset"] > last]
    after = later[len(later) // 2]["storeTimestamp"]
    for option, times in (("startingTimestamp", after), ("endingTimestamp", after)):
        options = {"path": golden.path, "mode": "PERMISSIVE", option: str(times)}
        reader = RmqStoreReader(pin_all(parse_options(options)), spark_schema(permissive=True))
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        bad = [row for batch in batches for row in batch.to_pylist() if row["corruptRecord"]]
        assert bool(bad) == (option == "endingTimestamp"), option


@pytest.mark.parametrize(
    "name", ["clean-4.3.2", "clean-5.5.0", "crash-5.3.3", "expired-5.5.0", "lmq-5.3.3", "hot-5.5.0"]
)
def test_no_wave_of_a_store_that_lost_nothing_reports_anything(name: str, tmp_path: Path) -> None:
    golden = unpack(name, tmp_path)
    answer = exported(golden, tmp_path / "copy", mode="PERMISSIVE", failOnDataLoss="false")
    assert answer.stopped_by is None
    assert damage_in(tmp_path / "copy") == []


def test_the_range_of_a_wave_begins_where_the_one_before_ends(
    golden: Callable[[str], GoldenStore],
) -> None:
    from rmq_store.snapshot.log_slices import pieces_of
    from spark_source.planning.partitions import cut_into_slices

    plan = pin_all(parse_options({"path": golden("clean-5.5.0").path})).stores[0]
    with plan.store.open() as store:
        waves = cut_into_slices(store, plan.ranges, WAVE)
        assert len(waves) > 5
        pieces = [pieces_of(plan.ranges, wave, store.view.offset_at_log) for wave in waves]
        found = [accounted_range(replace(plan, ranges=tuple(one)), store, None) for one in pieces]
    edges = [(one.start, one.stop) for one in found if one is not None]
    assert len(edges) == len(waves)
    assert [stop for _, stop in edges[:-1]] == [start for start, _ in edges[1:]]
    assert (edges[0][0], edges[-1][1]) == (None, None)


def test_a_selection_of_topics_accounts_for_no_range(golden: Callable[[str], GoldenStore]) -> None:
    options = {"path": golden("clean-5.5.0").path, "topic": "orders", "splitBy": "queue"}
    plan = pin_all(parse_options(options))
    with plan.stores[0].store.open() as store:
        assert accounted_range(plan.stores[0], store, None) is None
    assert missing_shares(plan) == []


def test_the_journal_keeps_the_ranges_of_the_first_run(
    hurt: tuple[GoldenStore, Truth], tmp_path: Path
) -> None:
    golden, _ = hurt
    spec = ReplaySpec(source=golden.path, to_store=str(tmp_path / "copy"), wave_bytes=WAVE)
    replay.run(None, spec, lambda: True)
    before = ReplayJournal.seen(tmp_path / "copy").begun
    assert before is not None
    plan = planned(spec, before)
    assert plan.ranges == before.ranges
    assert not plan.store.snapshot.part, "the other queues prove what lies between"


def test_waves_with_system_topics_account_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a wave, a topic of the broker has some queues with messages and some without."""
    far_from_the_ends(monkeypatch)
    golden = unpack("direct-5.5.0", tmp_path)
    queue = max(
        (q for q in golden.by_queue if q.topic == "orders"), key=lambda q: -len(golden.by_queue[q])
    )
    records = golden.by_queue[queue]
    lost = records[-1]
    place = lost["queueOffset"] * WIDTH
    files = sorted(Path(golden.path, "consumequeue", queue.topic, str(queue.queue_id)).iterdir())
    path = [path for path in files if int(path.name) <= place][-1]
    with path.open("r+b") as file:
        file.seek(place - int(path.name))
        file.write(bytes(WIDTH))
    forget_consumers(golden)
    shutil.rmtree(Path(golden.path, "index"))
    options = {"brokerName": "b", "brokerConf": golden.conf, "mode": "PERMISSIVE"}
    for waves in (10**9, 20_000):
        target = tmp_path / f"copy{waves}"
        spec = export.ExportSpec(
            golden.path, str(target), {**options, "includeSystemTopics": "true"}, wave_bytes=waves
        )
        assert export.run(None, spec).stopped_by is None
        assert damage_in(target) == [(*queue, lost["queueOffset"])]


@pytest.mark.parametrize("option", ["startingTimestamp", "endingTimestamp"])
def test_damage_is_reported_once_also_near_the_end(option: str, tmp_path: Path) -> None:
    golden = unpack(NAME, tmp_path)
    lost = lose_idle_end(golden)
    hurt_log(golden, lost["commitLogOffset"], b"\xff" * lost["storeSize"])
    times = [r["storeTimestamp"] for r in golden.truth if r["topic"] == "orders"]
    at = min(times) + 1 if option == "startingTimestamp" else max(times)
    for changed in ({}, {option: str(at)}):
        options = {"path": golden.path, "mode": "PERMISSIVE", **changed}
        reader = RmqStoreReader(pin_all(parse_options(options)), spark_schema(permissive=True))
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        bad = [row for batch in batches for row in batch.to_pylist() if row["corruptRecord"]]
        assert len(bad) == 2, [row["corruptRecord"] for row in bad]
