"""The replay's command line, its options for the source, and its journal: no Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from rmq_store import QueueId, QueueSlice
from rmq_store.errors import InvalidArgumentError
from rmq_store.files.journal import JournalError
from rmqstore_jobs.replay import main, spec_from_command_line
from rmqstore_jobs.replaying.plan import ReplayJournal, ReplayRun
from rmqstore_jobs.replaying.replay_question import source_options
from rmqstore_jobs.replaying.replay_spec import ReplaySpec, check_spec, times_of, with_fixed_times
from tests.support.golden import Golden
from tests.support.running.commands import complaint

ORDERS_0, PAYMENTS_1 = QueueId("orders", 0), QueueId("payments", 1)


def spec(*arguments: str) -> ReplaySpec:
    return spec_from_command_line(main.parse(["/source", "--to", "/target", *arguments]))


def test_a_source_and_a_target_are_enough() -> None:
    assert spec() == ReplaySpec(source="/source", to_store="/target")


@pytest.mark.parametrize(
    ("arguments", "field", "expected"),
    [
        (["--topic", "a", "--topic", "b"], "topics", ("a", "b")),
        (["--queue", "orders:0"], "queues", (ORDERS_0,)),
        (["--queue", "%RETRY%a:b:0"], "queues", (QueueId("%RETRY%a:b", 0),)),
        (["--offsets", "orders:0=5..9"], "offsets", {ORDERS_0: (5, 9)}),
        (["--offsets", "orders:0=-2..-1"], "offsets", {ORDERS_0: (-2, -1)}),
        (["--since", "2026-05-01T10:00:00Z"], "since", "2026-05-01T10:00:00Z"),
        (["--tag", "a", "--tag", "b"], "tags", ("a", "b")),
        (["--key", "ORDER_7"], "keys", ("ORDER_7",)),
        (["--map-topic", "orders=copy"], "topic_map", {"orders": "copy"}),
        (["--map-queue", "3=0"], "queue_map", {(None, 3): 0}),
        (["--map-queue", "orders:3=0"], "queue_map", {("orders", 3): 0}),
        (["--keep-timestamps"], "keep_timestamps", True),
        (["--wave-bytes", "64m"], "wave_bytes", 64 << 20),
        ([], "wave_bytes", None),
    ],
)
def test_an_argument_becomes_a_field(arguments: list[str], field: str, expected: Any) -> None:
    assert getattr(spec(*arguments), field) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--queue", "orders"], "cannot be read as --queue TOPIC:ID"),
        (["--queue", "orders:x"], "cannot be read as --queue TOPIC:ID"),
        (["--offsets", "orders:0=5"], "cannot be read as --offsets"),
        (["--map-topic", "orders"], "cannot be read as --map-topic"),
        (["--map-queue", "orders=1"], "cannot be read as --map-queue"),
        (["--since", "yesterday"], "is not a time"),
        (["--until", "1795253026"], "2026-11-21T09:23:46Z as seconds"),
        (["--topic", "a", "--queue", "a:0"], "exclude each other"),
        (["--queue", "orders:99999999999"], "cannot be read as --queue TOPIC:ID"),
        (["--offsets", f"orders:0={'9' * 5000}..1"], "cannot be read as --offsets"),
        (["--map-queue", "1=2147483648"], "cannot be read as --map-queue"),
        (["--patience", "nan"], "--patience must be"),
        (["--patience", "-1"], "--patience must be"),
        (["--by-index"], "needs --key"),
        (["--by-index", "--key", "ORDER_7||ORDER_8"], "Give --key once for each of them"),
        (["--to-parquet", "/target/parquet"], "must be separate folders"),
        (["--to-parquet", "/source"], "must be separate folders"),
        (["--to-parquet", "s3a://bucket/orders"], "written to folders"),
    ],
)
def test_what_cannot_be_is_refused_by_name(arguments: list[str], message: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        spec(*arguments)
    assert message in str(refused.value)


def test_an_empty_word_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="Leave the option out, or give a value"):
        spec("--key", " ")
    with pytest.raises(InvalidArgumentError, match="Give --key once for each of them"):
        check_spec(ReplaySpec(source="/source", to_store="/target", keys=(" ",)))


def test_no_target_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no target"):
        check_spec(ReplaySpec(source="/source"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--map-topic", "orderz=copy"), "Did you mean 'orders'"),
        (("--map-queue", "orderz:1=0"), "Did you mean 'orders'"),
        (("--map-topic", "orders=SCHEDULE_TOPIC_XXXX"), "has records of the broker"),
    ],
)
def test_a_change_of_names_that_cannot_be_is_refused(
    golden: Golden, tmp_path: Path, more: tuple[str, str], said: str
) -> None:
    path = golden("clean-5.5.0").path
    assert said in complaint("replay", path, "--to", str(tmp_path / "new"), *more, expect=2)
    assert not (tmp_path / "new").exists()


def test_an_unknown_option_is_refused_with_the_nearest() -> None:
    with pytest.raises(click.UsageError, match="Did you mean '--topic'"):
        spec("--topics", "orders")


@pytest.mark.parametrize(
    "size", ["many", "0", "-1", "nan", "", "9" * 30, "9" * 5000, "9999999999t"]
)
def test_a_size_that_is_none_is_refused(size: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a number of bytes"):
        spec("--wave-bytes", size)


@pytest.mark.parametrize("rate", ["nan", "inf", "-1", "0"])
def test_a_rate_that_is_none_is_refused(rate: str) -> None:
    words = ["/source", "--to-broker", "host:1", "--failed", "/failed", "--rate", rate]
    with pytest.raises(InvalidArgumentError, match="--rate must be"):
        spec_from_command_line(main.parse(words))


def test_times_that_end_before_they_begin_are_refused(golden: Golden) -> None:
    store = golden("clean-5.3.3")
    for since, until in (("-1s", "-2s"), ("2026-11-22", "2026-11-21")):
        with pytest.raises(InvalidArgumentError, match=r"--since has 2026.*, and --until has 2026"):
            with_fixed_times(ReplaySpec(source=store.path, since=since, until=until))


def test_the_selection_becomes_options_of_the_source() -> None:
    found = source_options(spec("--topic", "a", "--topic", "b", "--tag", "x", "--since", "-1h"))
    assert found == {
        "path": "/source",
        "compacted": "false",
        "topic": "a,b",
        "tags": "x",
        "startingTimestamp": "-1h",
    }
    found = source_options(spec("--offsets", "orders:0=5..9", "--queue", "payments:1"))
    assert json.loads(found["assign"]) == {"payments": [1], "orders": [0]}
    assert json.loads(found["startingOffsets"]) == {"orders": {"0": 5}}
    assert json.loads(found["endingOffsets"]) == {"orders": {"0": 9}}


def test_resolved_ranges_take_the_place_of_the_selection() -> None:
    ranges = [QueueSlice(ORDERS_0, 5, 9), QueueSlice(PAYMENTS_1, 0, 3)]
    found = source_options(spec("--topic", "orders", "--since", "-1h", "--tag", "x"), ranges)
    assert json.loads(found.pop("assign")) == {"orders": [0], "payments": [1]}
    assert json.loads(found.pop("startingOffsets")) == {"orders": {"0": 5}, "payments": {"1": 0}}
    assert json.loads(found.pop("endingOffsets")) == {"orders": {"0": 9}, "payments": {"1": 3}}
    assert found == {"path": "/source", "compacted": "false", "tags": "x"}


def test_what_was_asked_leaves_out_what_does_not_change_the_rows() -> None:
    plain = spec().asked()
    assert spec("--append", "--wave-bytes", "1g").asked() == plain
    assert spec("--keep-timestamps").asked() != plain
    assert (
        json.loads(json.dumps(spec("--map-queue", "a:3=0").asked()))
        == spec("--map-queue", "a:3=0").asked()
    )


def test_relative_times_of_a_replay_are_fixed_before_it_starts(golden: Golden) -> None:
    """Its journal keeps milliseconds: an interrupted replay of a growing store continues as asked."""
    store = golden("clean-5.3.3")
    newest = store.truth[-1]["storeTimestamp"]
    given = ReplaySpec(source=store.path, since="-2s", until="2100-01-01")
    fixed = with_fixed_times(given)
    assert (fixed.since, fixed.until) == (str(newest - 2000), "2100-01-01")
    assert times_of(fixed) == (newest - 2000, 4102444800000)


def a_run(**changes: Any) -> ReplayRun:
    ranges = (QueueSlice(QueueId("orders", 1), 3, 9),)
    known = {"asked": {"topics": ["orders"]}, "created": True, "target_queues": (("a", 0, 7),)}
    return ReplayRun(**{**known, "ranges": ranges, "log_range": (0, 900), **changes})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_recorded_is_what_the_next_process_reads(tmp_path: Path) -> None:
    with ReplayJournal(tmp_path / "store") as journal:
        assert names(tmp_path) == ["store.replay.lock"]
        run = journal.record(a_run(), next_log_offset=400, target_end=77, counts={"read": 5})
    with ReplayJournal(tmp_path / "store") as again:
        assert again.begun == run
        again.clear_begun()
    assert names(tmp_path) == []


def test_a_finished_run_is_known_by_what_was_asked(tmp_path: Path) -> None:
    with ReplayJournal(tmp_path / "store") as journal:
        journal.finish(journal.record(a_run()), next_log_offset=None)
    again = ReplayJournal.read_only(tmp_path / "store")
    assert again.begun is None
    assert again.done_like({"topics": ["orders"]}) == again.done[0]
    assert again.done_like({"topics": ["payments"]}) is None
    assert names(tmp_path) == ["store.replay.json"]


@pytest.mark.parametrize(
    "content", ['{"format": 1, "runs": []}', '{"format": 1, "journal": "a write"}']
)
def test_what_no_replay_wrote_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "store.replay.json").write_text(content)
    with pytest.raises(JournalError, match=r"store\.replay\.json.*Replay into a new target"):
        ReplayJournal(tmp_path / "store").__enter__()
    assert names(tmp_path) == ["store.replay.json"]
    assert (tmp_path / "store.replay.json").read_text() == content


@pytest.mark.parametrize(
    ("asked", "created", "says"),
    [
        ({"to_store": "/t", "to_parquet": None}, True, "delete /t and {path}"),
        ({"to_store": "/t", "to_parquet": "/p"}, True, "delete /t and /p and {path}"),
        ({"to_store": None, "to_parquet": "/p"}, False, "delete /p and {path}"),
        ({"to_store": "/t"}, False, 'before 2026, and set "begun" to null in {path}'),
        ({"to_broker": "host:1"}, False, "name another --failed folder"),
    ],
)
def test_it_says_how_to_start_again(
    asked: dict[str, Any], created: bool, says: str, tmp_path: Path
) -> None:
    journal = ReplayJournal(tmp_path / "store")
    run = a_run(asked=asked, created=created, started="2026")
    assert journal.how_to_start_again(run).endswith(says.format(path=journal.path))
