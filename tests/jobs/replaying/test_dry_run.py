"""A dry run of the replay: what would go where, to every target; and nothing is written."""

from __future__ import annotations

import base64
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rmq_store import MessageStore
from rmq_store.errors import TargetExistsError
from rmq_store.files.journal import JournalError
from rmqstore_jobs.replay import main, run
from rmqstore_jobs.replay_targets.replay_call import PlannedQueue
from rmqstore_jobs.running.job_command import EXIT_OK
from tests.support.golden import Golden, GoldenStore, messages_in, user_topic
from tests.support.running.engines import ON_BOTH
from tests.support.spark.replays import NAME, arrived, spec


def planned_of(store: GoldenStore, topic: str, target: str) -> list[PlannedQueue]:
    """By the truth: a row for each queue of a topic that has no inner batches."""
    found = []
    records = [record for record in store.truth if record["topic"] == topic]
    for queue in sorted({record["queueId"] for record in records}):
        of_queue = [record for record in records if record["queueId"] == queue]
        offsets = [record["queueOffset"] for record in of_queue]
        found.append(
            PlannedQueue(
                topic=topic,
                queue_id=queue,
                start_offset=min(offsets),
                stop_offset=max(offsets) + 1,
                target_topic=target,
                target_queue_id=queue,
                messages=len(of_queue),
                bytes=sum(len(base64.b64decode(record["body"] or "")) for record in of_queue),
                refused=0,
            )
        )
    return found


@pytest.mark.parametrize("target", ["to_store", "to_parquet"])
@ON_BOTH
def test_it_reports_what_would_go_where_and_creates_no_file(
    engine: SparkSession | None, clean: GoldenStore, tmp_path: Path, target: str
) -> None:
    before = clean.fingerprint()
    more: dict[str, Any] = {target: str(tmp_path / "new"), "topic_map": {"orders": "copy"}}
    asked = spec(clean, topics=("orders", "payments"), **more)
    dry = run(engine, replace(asked, dry_run=True))
    assert list(tmp_path.iterdir()) == []
    assert clean.fingerprint() == before
    expected = [*planned_of(clean, "orders", "copy"), *planned_of(clean, "payments", "payments")]
    assert list(dry.planned) == expected
    messages = sum(queue.messages for queue in expected)
    assert (dry.ok, dry.written, dry.would_write) == (True, {}, {str(tmp_path / "new"): messages})
    assert run(engine, asked).written == dry.would_write


def test_it_reports_what_the_target_would_refuse_and_the_run_refuses_that(
    golden: Golden, tmp_path: Path
) -> None:
    conf = tmp_path / "small.conf"
    conf.write_text("maxMessageSize=600\nmappedFileSizeCommitLog=262144\n")
    target = str(tmp_path / "new")
    asked = spec(golden(NAME), to_store=target, topics=("orders",), target_conf=str(conf))
    dry = run(None, replace(asked, dry_run=True))
    assert not Path(target).exists()
    done = run(None, asked)
    assert done.skipped == dry.skipped
    assert done.written == dry.would_write
    refused = Counter({queue.queue_id: queue.refused for queue in dry.planned})
    assert refused.total() == dry.skipped["refused by the target"] > 0
    assert not dry.ok
    (problem,) = dry.problems
    assert "maxMessageSize" in problem
    assert "at most 600 bytes" in problem


def test_messages_with_other_keys_are_counted_as_in_a_run(golden: Golden, tmp_path: Path) -> None:
    store = golden(NAME)
    key = next(r["keys"].split()[0] for r in store.truth if r["topic"] == "orders" and r["keys"])
    asked = spec(store, to_store=str(tmp_path / "new"), topics=("orders",), keys=(key,))
    dry = run(None, replace(asked, dry_run=True))
    done = run(None, asked)
    assert (dry.read, dry.matched, dry.skipped) == (done.read, done.matched, done.skipped)
    assert 0 < dry.matched < dry.read
    asked = replace(asked, to_store=str(tmp_path / "again"), by_index=True)
    found = run(None, replace(asked, dry_run=True))
    assert found.read == found.matched == dry.matched
    assert found.skipped == dry.skipped == {"other keys": dry.selected - dry.matched}


def test_it_reports_what_remains_of_a_stopped_replay(clean: GoldenStore, tmp_path: Path) -> None:
    asked = spec(clean, to_store=str(tmp_path / "new"), wave_bytes=100_000)
    run(None, asked, lambda: True)
    there = len(arrived(tmp_path / "new"))
    held = sorted(tmp_path.rglob("*"))
    dry = run(None, replace(asked, dry_run=True))
    assert sorted(tmp_path.rglob("*")) == held
    assert dry.resumed
    whole = sum(map(user_topic, clean.truth))
    assert 0 < there < whole
    assert dry.would_write == {str(tmp_path / "new"): whole - there}
    assert run(None, asked).ok
    with pytest.raises(JournalError, match="this replay"):
        run(None, replace(asked, dry_run=True))
    other = spec(clean, to_store=str(tmp_path / "new"), topics=("orders",), dry_run=True)
    with pytest.raises(TargetExistsError, match="--append"):
        run(None, other)


def test_it_reports_what_each_of_two_targets_would_get(clean: GoldenStore, tmp_path: Path) -> None:
    """After a stop, a store continues where it was, and Parquet starts again."""
    new, parquet = str(tmp_path / "new"), str(tmp_path / "parquet")
    asked = spec(clean, to_store=new, to_parquet=parquet, wave_bytes=100_000)
    run(None, asked, lambda: True)
    there = len(arrived(tmp_path / "new"))
    whole = sum(messages_in(record) for record in clean.truth if user_topic(record))
    assert 0 < there < whole
    dry = run(None, replace(asked, dry_run=True))
    assert dry.would_write == {new: whole - there, parquet: whole}


def test_for_a_broker_its_client_is_asked_and_nobody_else(golden: Golden, tmp_path: Path) -> None:
    """No broker listens at this address: a dry run must not notice."""
    store = golden(NAME)
    failed = str(tmp_path / "failed")
    asked = {"to_broker": "127.0.0.1:1", "failed": failed, "dry_run": True}
    dry = run(None, spec(store, **asked))
    assert list(tmp_path.iterdir()) == []
    messages = sum(messages_in(record) for record in store.truth if user_topic(record))
    assert dry.matched == sum(queue.messages for queue in dry.planned) == messages
    assert {queue.target_queue_id for queue in dry.planned} == {None}

    with MessageStore.create(tmp_path / "odd") as odd:
        odd.append({"topic": "odd", "queueId": 3, "body": b"fine"})
        odd.append({"topic": "odd", "queueId": 3, "body": b"x", "properties": {"TAGS": "a|b"}})
    source = replace(spec(store, **asked), source=str(tmp_path / "odd"), broker_conf=None)
    dry = run(None, source)
    assert [(q.topic, q.queue_id, q.messages, q.refused) for q in dry.planned] == [("odd", 3, 2, 1)]
    assert dry.would_write == {"127.0.0.1:1": 1}
    assert "tag should not contain" in dry.problems[0]


def test_the_command_says_that_it_was_dry(
    golden: Golden, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [golden(NAME).path, "--to", str(tmp_path / "new"), "--topic", "retrying"]
    assert main([*words, "--dry-run"]) == EXIT_OK
    reported = capsys.readouterr().out
    assert "planned target queues" in reported
    assert "nothing was written or sent" in reported
    assert list(tmp_path.iterdir()) == []
