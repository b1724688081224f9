"""The verdict: what is lost, by the truth; whether a broker starts, and with what queues, by a real one.

`starts_of_5.5.0.jsonl` has what a broker of 5.5.0 did with each store of `injured_stores`: `log` is the range
of its log afterwards, `qdiff` the queues whose range changed, before and after. It had delivered delayed
messages by then, so that some queues and the log were longer than before.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import InvalidArgumentError
from rmq_store.format.queues import QUEUE_ENTRY, QueueId
from rmq_store.recovery import recover
from rmq_store.recovery.recover_store import broker_start, plan_recovery
from rmq_store.verify.findings import Severity
from rmq_store.verify.verdict import DAMAGED, FLAWED, SOUND, Verdict
from tests.support.damage import log_file_at, write_in_log
from tests.support.golden import KINDS, GoldenStore, log_files, unpack, unpack_kind, verified
from tests.support.injured_stores import INJURIES, REFUSED_FILES, resize
from tests.support.running.commands import call, objects, run
from tests.support.stores import contents, make_store

STARTS = [
    json.loads(line)
    for line in Path(__file__).with_name("starts_of_5.5.0.jsonl").read_text().splitlines()
]
LOG_END, LATER = 951_545, 953_509  # of clean-5.5.0, and where the baseline's broker had it
OF_BODY = 88  # bytes of a record before its body, of hosts with IPv4
LAST_QUEUE_FILE = "00000000000000004000"  # of the longest queues of clean-5.5.0
DELIVERED_MEANWHILE = ("payments", "%RETRY%g-retry")


def hurt(name: str, target: Path) -> GoldenStore:
    store = unpack("clean-5.5.0", target)
    INJURIES[name](Path(store.path))
    return store


def judged(store: GoldenStore) -> Verdict:
    return verified(store.path, broker_conf=store.conf).verdict


@pytest.mark.parametrize("case", [row for row in STARTS if row["case"] in INJURIES], ids=str)
def test_a_broker_starts_and_cuts_as_the_real_one_did(tmp_path: Path, case: dict[str, Any]) -> None:
    store = hurt(case["case"], tmp_path)
    start = broker_start(Path(store.path), StoreConfig.of(store.conf))
    assert (not start.refusals) is case["starts"]
    if start.plan is None:
        return
    assert start.plan.log_end == (LOG_END if case["log"][1] >= LATER else case["log"][1])
    ours = {f"{q.topic}@{q.queue_id}": ends for q, ends in start.plan.queues.items()}
    for queue, (_, after) in case["qdiff"].items():
        low, high = ours.get(queue, (0, 0))
        if after is None:
            assert low >= high or high == 0
        elif queue.startswith(DELIVERED_MEANWHILE):
            assert low == after[0]
        else:
            assert [low, high] == after


def test_every_case_is_tried() -> None:
    assert len([row for row in STARTS if row["case"] in INJURIES]) == 89


def lost_of(store: GoldenStore, start: int, stop: int) -> tuple[int, int]:
    """Messages of records in a range of the log, and of how many queues."""
    lost = [
        record
        for record in store.truth
        if record["commitLogOffset"] < stop
        and record["commitLogOffset"] + record["storeSize"] > start
    ]
    messages = sum(int(record["properties"].get("INNER_NUM", 1)) for record in lost)
    return messages, len({(record["topic"], record["queueId"]) for record in lost})


@pytest.mark.parametrize(
    ("case", "start", "stop"),
    [
        ("log last cut to 100k", 886_432, LOG_END),
        ("log last empty", 786_432, LOG_END),
        ("log middle cut to 100k", 362_144, 524_288),
        ("log middle missing", 262_144, 524_288),
        ("log middle empty+abort", 262_144, 524_288),
        ("log last missing+abort", 786_432, LOG_END),
    ],
)
def test_what_is_lost_is_what_the_range_had(
    tmp_path: Path, case: str, start: int, stop: int
) -> None:
    store = hurt(case, tmp_path)
    verdict = judged(store)
    assert verdict.state == DAMAGED
    assert (verdict.lost.messages, verdict.lost.queues) == lost_of(store, start, stop)
    before = [
        r["storeTimestamp"] for r in store.truth if r["commitLogOffset"] + r["storeSize"] <= start
    ]
    after = [r["storeTimestamp"] for r in store.truth if r["commitLogOffset"] >= stop]
    assert verdict.lost.after_ms == before[-1]
    assert verdict.lost.before_ms == (after[0] if after else None)


def test_messages_that_were_in_no_queue_yet_are_lost_too(tmp_path: Path) -> None:
    """The records behind them say which queue offsets are gone. A broker gives these to the next messages."""
    store = unpack("hours-crash-5.5.0", tmp_path)
    with store.open() as opened:
        listed = opened.snapshot().last_listed
    file = next(path for path in log_files(store) if int(path.name) > listed)
    start = int(file.name)
    stop = start + file.stat().st_size
    file.unlink()
    report = verified(store.path, broker_conf=store.conf)
    lost = report.verdict.lost
    assert (lost.messages, lost.queues) == lost_of(store, start, stop)
    assert report.verdict.sentence().startswith(f"damaged: at least {lost.messages} messages")
    named = [finding.count for finding in report.findings if finding.code == "undispatched-lost"]
    assert sum(named) == lost.messages
    plan = broker_start(Path(store.path), StoreConfig.of(store.conf)).plan
    assert plan is not None
    ends = sum(stop - start for start, stop in plan.queues.values())
    assert report.verdict.cuts == len(store.truth) - lost.messages - ends


def test_messages_without_entry_and_record_are_lost(tmp_path: Path) -> None:
    store = unpack("hours-clean-5.5.0", tmp_path)
    queue = QueueId("orders", 3)
    with store.open() as opened:
        middle = opened.log_offset_of(queue, 660)
    gone = log_file_at(store, middle)
    start, stop = int(gone.name), int(gone.name) + gone.stat().st_size
    gone.unlink()
    file = Path(store.path, "consumequeue", *map(str, queue), f"{600 * QUEUE_ENTRY.itemsize:020}")
    resize(file, 44 * QUEUE_ENTRY.itemsize)
    cut = [r for r in store.truth if r["topic"] == "orders" and r["queueId"] == 3][644:700]
    kept = [r for r in cut if not start <= r["commitLogOffset"] < stop]
    assert 0 < len(kept) < len(cut)
    verdict = judged(store)
    assert verdict.lost.messages == lost_of(store, start, stop)[0]
    assert verdict.unlisted == len(kept)


def test_a_message_with_a_damaged_body_is_lost(tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    record = next(r for r in store.truth if r["topic"] == "orders" and r["body"])
    write_in_log(store, record["commitLogOffset"] + OF_BODY, b"\xff" * 4)
    verdict = judged(store)
    lost = (verdict.lost.messages, verdict.lost.queues, verdict.lost.bytes)
    assert lost == (1, 1, record["storeSize"])


def test_a_record_that_names_another_topic_is_lost_to_its_queue(tmp_path: Path) -> None:
    """A rebuild lists the messages behind it one place too low, and consumers skip one."""
    store = unpack("clean-5.5.0", tmp_path)
    record = [r for r in store.truth if r["topic"] == "orders" and r["queueId"] == 0][20]
    file = log_file_at(store, record["commitLogOffset"])
    start = record["commitLogOffset"] - int(file.name)
    stored = file.read_bytes()[start : start + record["storeSize"]]
    write_in_log(store, record["commitLogOffset"] + stored.rindex(b"\x06orders") + 1, b"a")
    verdict = judged(store)
    assert (verdict.state, verdict.lost.messages, verdict.lost.queues) == (DAMAGED, 1, 1)
    assert verdict.help is not None
    assert "salvage" in verdict.help.command


def test_messages_of_the_last_file_are_lost_though_an_empty_one_follows(tmp_path: Path) -> None:
    """A broker allocates the next file ahead, so that the log seems to end in the file before."""
    store = unpack("crash-5.3.3", tmp_path)
    with store.open() as opened:
        queues = [*opened.queues()]
        listed = [opened.log_offset_of(q, opened.max_offset(*q) - 1) for q in queues]
    missing = log_file_at(store, max(listed))
    missing.unlink()
    assert log_files(store)[-1] > missing
    verdict = judged(store)
    cut = plan_recovery(store.path, store.conf).entries_cut
    assert (verdict.state, verdict.lost.messages) == (DAMAGED, cut)
    assert verdict.lost.queues == len(queues)


@pytest.mark.parametrize(
    ("case", "state", "starts", "helps"),
    [
        ("baseline", SOUND, True, None),
        ("abort", SOUND, True, "start the broker"),
        ("log middle cut to 100k", DAMAGED, False, "recover"),
        ("log middle missing", DAMAGED, True, "salvage"),
        ("log last missing", DAMAGED, True, "look for the end of the log"),
        ("log junk file name foo", FLAWED, False, "commitlog/foo"),
        ("queue last cut", FLAWED, False, "rebuild"),
        ("queue last missing", FLAWED, True, "rebuild"),
        ("queue last missing+abort", FLAWED, True, "recover"),
        ("queue last of zeros", FLAWED, True, "rebuild"),
        ("index missing", FLAWED, True, "rebuild"),
        ("delayOffset bad, bak bad", FLAWED, False, "delayOffset.json.bak"),
        ("inner declared plain", FLAWED, False, "topics.json"),
        ("timerwheel cut", SOUND, True, None),
    ],
)
def test_the_verdict_names_what_helps(
    tmp_path: Path, case: str, state: str, starts: bool, helps: str | None
) -> None:
    store = hurt(case, tmp_path)
    report = verified(store.path, broker_conf=store.conf)
    verdict = report.verdict
    assert starts or not report.nothing_wrong
    assert (verdict.state, verdict.starts) == (state, starts)
    assert (verdict.help is None) is (helps is None)
    if verdict.help is not None and helps is not None:
        assert helps in verdict.help.command


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("folder", ["orders/0", "orders/9"])
def test_a_queue_file_without_an_entry_is_deleted_before_a_broker_takes_zeros_for_one(
    tmp_path: Path, folder: str, closed: bool
) -> None:
    """A consumer of a real broker stops there (tests/live/test_hurt_stores.py)."""
    make_store(tmp_path, 140)  # of which orders/0 has two full files
    with MessageStore.open(tmp_path) as store:
        before = contents(store)
        assert store.max_offset("orders", 0) == 40
    queue = tmp_path / "consumequeue" / folder
    queue.mkdir(exist_ok=True)
    end = 400 * len(list(queue.iterdir()))
    file = queue / f"{end:020}"
    file.write_bytes(bytes(400))
    if not closed:
        (tmp_path / "abort").touch()
    assert "queue-file-empty" in run("verify", str(tmp_path), expect=1)
    report = verified(tmp_path)
    assert (report.verdict.state, report.verdict.starts) == (FLAWED, True)
    assert report.verdict.help is not None
    assert "recover" in report.verdict.help.command
    recover(tmp_path)
    assert not file.exists()
    assert verified(tmp_path).verdict.state == SOUND
    with MessageStore.open(tmp_path) as store:
        assert {queue: rows for queue, rows in contents(store).items() if rows} == before


@pytest.mark.parametrize("closed", [True, False])
def test_a_file_without_an_entry_tells_where_a_queue_goes_on_whose_messages_expired(
    tmp_path: Path, closed: bool
) -> None:
    """A broker gives the next message a queue offset that no consumer has passed."""
    make_store(tmp_path, 140)
    queue = tmp_path / "consumequeue" / "expired" / "0"
    queue.mkdir(parents=True)
    (queue / f"{8000:020}").write_bytes(bytes(400))
    if not closed:
        (tmp_path / "abort").touch()
    assert verified(tmp_path).verdict.state == SOUND
    recover(tmp_path)
    with MessageStore.append_to(tmp_path) as writer:
        assert writer.append({"topic": "expired", "queueId": 0, "body": b"x"}).queue_offset == 400


def test_a_queue_of_zeros_alone_is_emptied_by_a_recovery(tmp_path: Path) -> None:
    make_store(tmp_path, 140)
    for file in (tmp_path / "consumequeue/orders/0").iterdir():
        file.write_bytes(bytes(400))
    recover(tmp_path)
    with MessageStore.open(tmp_path) as store:
        assert verified(tmp_path).verdict.state == SOUND
        assert store.max_offset("orders", 0) == 40


def test_a_file_of_another_queue_is_no_loss(tmp_path: Path) -> None:
    """Each of its entries leads to an intact record, so a rebuild lists all of them."""
    store = unpack("clean-5.5.0", tmp_path)
    queues = Path(store.path) / "consumequeue" / "orders"
    shutil.copy(queues / "1" / LAST_QUEUE_FILE, queues / "0" / LAST_QUEUE_FILE)
    verdict = judged(store)
    assert (verdict.state, verdict.lost.messages) == (FLAWED, 0)
    assert verdict.help is not None
    assert "rebuild" in verdict.help.command


def test_a_queue_file_that_begins_with_zeros_has_entries(tmp_path: Path) -> None:
    make_store(tmp_path, 400)
    file = max((tmp_path / "consumequeue" / "orders" / "1").iterdir())
    file.write_bytes(bytes(40) + file.read_bytes()[40:])
    codes = {finding.code for finding in verified(tmp_path).findings}
    assert "queue-misses-record" in codes
    assert "queue-file-empty" not in codes


@pytest.mark.parametrize(
    ("name", "store_type", "is_other"),
    [
        ("clean-5.5.0", "defaultRocksDB", True),
        ("clean-5.5.0", "default", False),
        ("rocksdb-5.5.0", "default", True),
        ("rocksdb-5.5.0", "defaultrocksdb", False),
    ],
)
def test_queues_of_another_store_type_are_named(
    tmp_path: Path, name: str, store_type: str, is_other: bool
) -> None:
    """A broker finds none of them, and makes some anew of the newest ten log files."""
    store = (unpack_kind if name in KINDS else unpack)(name, tmp_path)
    conf = tmp_path / "of-another.conf"
    conf.write_text(f"storeType={store_type}\n")
    report = verified(store.path, broker_conf=str(conf))
    codes = [finding.code for finding in report.findings]
    assert ("config-store-type" in codes) is is_other
    assert report.verdict.state == (FLAWED if is_other else SOUND)
    assert report.verdict.starts is (None if is_other or name in KINDS else True)


def test_what_a_start_takes_from_queues_is_said(tmp_path: Path) -> None:
    """A crash lost the end of the log, and not that of the queues."""
    store = unpack("crash-5.5.0", tmp_path)
    with store.open() as opened:
        ends = {queue: opened.max_offset(*queue) for queue in opened.queues()}
        last = max(opened.log_offset_of(q, end - 1) for q, end in ends.items())
        start = min(opened.log_offset_of(q, end - 1) for q, end in ends.items() if end > 50)
    file = log_file_at(store, last)
    with file.open("r+b") as log:
        log.seek(max(0, start - int(file.name)))
        log.write(bytes(file.stat().st_size - log.tell()))
    report = verified(store.path, broker_conf=store.conf)
    plan = plan_recovery(store.path, store.conf)
    gone = sum(plan.entries_after_log.values())
    assert gone
    assert report.verdict.cuts >= gone
    assert "log-ends-before-queues" in {finding.code for finding in report.findings}


@pytest.mark.parametrize(("name", "file", "size", "code", "helps"), REFUSED_FILES)
def test_each_file_with_which_no_broker_starts_is_an_error(
    tmp_path: Path, name: str, file: str, size: int, code: str, helps: str
) -> None:
    """A real broker of 5.5.0 refuses each (tests/live/test_hurt_stores.py)."""
    store = (unpack_kind if name in KINDS else unpack)(name, tmp_path)
    path = Path(store.path, file)
    resize(path, size)
    # Other files of queues show their size; of the timer only the configuration does.
    report = verified(store.path, broker_conf=store.conf if code == "file-refused" else None)
    (finding,) = [one for one in report.findings if one.code.endswith("refused")]
    assert (finding.severity, finding.path, finding.code) == (Severity.ERROR, str(path), code)
    assert (report.verdict.state, report.verdict.starts) == (FLAWED, False)
    assert report.verdict.help is not None
    assert helps in f"{report.verdict.help.command} {report.verdict.help.effect}"
    if helps == "rebuild":
        new = tmp_path / "new"
        call("rebuild", store.path, "--to", str(new), "--broker-conf", store.conf)
        assert broker_start(new, StoreConfig.of(store.conf)).refusals == ()


def test_a_broker_starts_after_the_command_that_helps(tmp_path: Path) -> None:
    store = hurt("log middle cut to 100k", tmp_path)
    verdict = judged(store)
    assert verdict.help is not None
    kept = int(verdict.help.effect.split()[1].replace(",", ""))
    call("recover", store.path, "--apply", "--broker-conf", store.conf)
    start = broker_start(Path(store.path), StoreConfig.of(store.conf))
    assert start.refusals == ()
    assert verified(store.path, broker_conf=store.conf).records == kept


def test_a_file_that_is_too_long_is_named_where_the_store_is_opened(tmp_path: Path) -> None:
    store = hurt("log last longer", tmp_path)
    with pytest.raises(InvalidArgumentError) as refused:
        judged(store)
    assert str(refused.value.path).endswith("00000000000000786432")


def test_the_first_lines_of_verify_are_the_verdict(tmp_path: Path) -> None:
    store = hurt("log middle cut to 100k", tmp_path)
    said = run("verify", store.path, "--broker-conf", store.conf, expect=1).splitlines()
    assert [line.split()[0] for line in said[:3]] == ["verdict", "broker", "do"]
    assert "307 messages of 6 queues lost" in said[0]
    assert "does not start" in said[1]
    assert "more file" not in said[1]
    *_, summary = objects("verify", store.path, "--broker-conf", store.conf, expect=1)
    assert summary["verdict"]["lostMessages"] == 307
    assert summary["verdict"]["brokerStarts"] is False
    files = list(Path(store.path, "consumequeue/orders/0").iterdir())
    for path in files:
        os.truncate(path, 10)
    said = run("verify", store.path, "--broker-conf", store.conf, expect=1).splitlines()
    assert f"(and {len(files)} more files)" in said[1]


_FROM, _TO, _LAST = (f"2026-11-21T09:23:{end}Z" for end in ("49.059", "49.773", "51.175"))
_SHORT = (
    "it has 100000 bytes, expected a number as its name and mappedFileSizeCommitLog=262144 bytes"
)
_RECOVERED = "keeps 1,453 messages, cuts 252 bytes, and entries that point past the log's end"
WORDS = {
    "baseline": ["verdict sound", "broker starts"],
    "abort": [
        "verdict sound",
        "broker starts",
        "do start the broker   it recovers the store, and takes no message from its queues",
    ],
    "log middle cut to 100k": [
        f"verdict damaged: 307 messages of 6 queues lost, stored between {_FROM} and {_TO}",
        f"broker does not start: STORE/commitlog/00000000000000262144: {_SHORT}",
        "do rmqstore recover STORE --apply   keeps 1,281 messages, cuts 0 bytes",
    ],
    "log last cut to 100k": [
        f"verdict damaged: 174 messages of 12 queues lost, stored between {_LAST} and the end",
        f"broker does not start: STORE/commitlog/00000000000000786432: {_SHORT}",
        f"do rmqstore recover STORE --apply   {_RECOVERED}: look for it in a replica first",
    ],
    "log first empty": ["verdict damaged: 477 messages of 6 queues lost"],
    "log last missing": [
        "verdict damaged: 495 messages of 17 queues lost, stored between 2026-11-21T09:23:50.902Z "
        "and the end",
        "broker starts, and takes 495 messages from the queues",
    ],
    "queue last missing": [
        "verdict flawed: 49 messages in the log that no consumer gets",
        "broker starts; consumers may stop at what is missing, or skip more",
        "do rmqstore rebuild STORE --to NEW   lists all 1,588 messages of the log, in a new store",
    ],
    "index missing": [
        "verdict flawed: no message is known to be lost",
        "broker starts",
        "do rmqstore rebuild STORE --to NEW   indexes all 1,588 messages of the log, in a new store",
    ],
}


@pytest.mark.parametrize("case", WORDS)
def test_what_is_said_of_a_store(tmp_path: Path, case: str) -> None:
    store = hurt(case, tmp_path)
    verdict = judged(store)
    said = [f"{word} {text}".replace(store.path, "STORE") for word, text in verdict.lines()]
    assert said[: len(WORDS[case])] == WORDS[case]
    assert verdict.lacks_messages is (case not in ("baseline", "abort", "index missing"))
    values = verdict.to_dict()
    times = [values[name] or "none" for name in ("lost_after", "lost_before")]
    of_case = {"log middle cut to 100k": [_FROM, _TO], "log last cut to 100k": [_LAST, "none"]}
    assert case not in of_case or times == of_case[case]


def test_the_times_around_several_losses_are_those_around_all_of_them(tmp_path: Path) -> None:
    store = hurt("log first missing", tmp_path)
    records = [row for row in store.truth if row["commitLogOffset"] > 300_000]
    for row in (records[3], records[9], records[20]):
        write_in_log(store, row["commitLogOffset"], bytes(40))
    lost = judged(store).lost
    assert (lost.messages, lost.are_all) == (3, True)
    assert lost.after_ms == records[2]["storeTimestamp"]
    assert lost.before_ms == records[21]["storeTimestamp"]


@pytest.mark.parametrize("name", ["batches-5.5.0", "multipath-5.5.0"])
def test_a_store_with_batch_queues_that_never_had_a_configuration_may_get_one(
    tmp_path: Path, name: str
) -> None:
    """The store classes alone wrote it. A broker starts on it if it gets the right topics.json."""
    store = unpack(name, tmp_path)
    verdict = verified(store.path, config=store.log_folders).verdict
    assert (verdict.state, verdict.starts, verdict.refusals) == (SOUND, None, ())


@pytest.mark.parametrize("case", ["config missing", "topics missing, no bak"])
def test_a_verdict_of_refusal_is_an_error_too(tmp_path: Path, case: str) -> None:
    report = verified(hurt(case, tmp_path).path)
    assert not report.nothing_wrong
    assert (report.verdict.state, report.verdict.starts) == (FLAWED, False)


def test_a_store_that_a_process_has_open_has_no_verdict_on_its_start(copy: GoldenStore) -> None:
    with MessageStore.append_to(copy.path, copy.conf):
        assert judged(copy).starts is None


@pytest.mark.parametrize("name", KINDS)
def test_no_store_of_another_kind_is_said_to_be_refused(tmp_path: Path, name: str) -> None:
    """A broker wrote each of them. What it does with queues in RocksDB, or in DLedger mode, is not known."""
    store = unpack_kind(name, tmp_path)
    verdict = verified(store.path).verdict
    assert (verdict.refusals, verdict.help, verdict.lost.messages) == ((), None, 0)
    planned = not name.startswith(("rocksdb", "dledger"))
    assert verdict.starts is (True if planned else None)
