"""What a newcomer types: completion, groups of --help, words in another order, a search for nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.shell_completion import ShellComplete

from rmq_store.cli.main import COMMANDS, other_commands, rmqstore
from rmq_store.errors import nearest
from tests.support.golden import Golden, GoldenStore, unpack
from tests.support.running.commands import call, complaint, objects, run


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (["lag", "STORE", "--topic", "norm"], ["norm", "normasync"]),
        (["lag", "STORE", "--group", "g1"], ["g1", "g1tag"]),
        (["queues", "STORE", "--topic", "fi"], ["fifo"]),
        (["table", "top"], ["topics"]),
        (["lag", "nowhere", "--topic", "n"], []),
        (["tr"], ["trace", "transactions", "traces"]),
    ],
)
def test_the_shell_completes_names_of_the_store(
    golden: Golden, typed: list[str], found: list[str]
) -> None:
    words = [word.replace("STORE", golden("proxy-5.5.0").path) for word in typed]
    completion = ShellComplete(rmqstore, {}, "rmqstore", "_RMQSTORE_COMPLETE")
    given = completion.get_completions(words[:-1], words[-1])
    assert [one.value for one in given] == found


def test_help_names_each_command_in_a_group() -> None:
    text = call("--help").stdout
    for name in (*COMMANDS, *other_commands()):
        assert text.count(f"\n  {name} ") == 1
    assert "Others:" not in text


def test_the_store_may_stand_before_the_name_of_a_table(golden: Golden) -> None:
    path = golden("proxy-5.5.0").path
    assert run("table", path, "topics") == run("table", "topics", path)
    assert "RW-" in run("topics", path)
    assert "there is no table" in complaint("table", path, "topicz", expect=2)


def test_a_search_for_nothing_is_refused(golden: Golden) -> None:
    path = golden("proxy-5.5.0").path
    assert "something to search for" in complaint("find", path, expect=2)
    assert len(run("find", path, "--limit", "3").splitlines()) == 3


def test_an_error_lists_ten_names() -> None:
    names = [f"topic-{number:02}" for number in range(12)]
    assert nearest("zzz", names) == f"Known names: {', '.join(names[:10])} and 2 more"
    assert nearest("zzz", []) == "There are none"
    assert nearest("zzz", names[:10]) == f"Known names: {', '.join(names[:10])}"


def test_lag_lists_the_furthest_behind_first_and_says_what_is_wrong(
    golden: Golden, tmp_path: Path
) -> None:
    path = golden("clean-5.5.0").path
    rows = objects("lag", path)
    lags = [row["lag"] for row in rows]
    assert lags == sorted(lags, reverse=True)
    assert lags[0] > lags[-1]
    topmost = objects("lag", path, "--top", "3")
    for row in (*topmost, *rows):
        del row["configAgeMs"]
    assert topmost == rows[:3]
    done = call("lag", path, "--max-lag", str(sum(lags)))
    of_users = sum(row["lag"] for row in rows if not row["consumerGroup"].startswith("CID_"))
    assert (done.returncode, f"{of_users:,} messages in all" in done.stderr) == (0, True)
    said = complaint("lag", path, "--max-lag", "5", "--top", "1", expect=1)
    assert "group g-slow of topic orders is 687 messages behind" in said

    store = Path(unpack("clean-5.5.0", tmp_path).path)
    offsets = store / "config/consumerOffset.json"
    text, changed = re.subn(r"\b0:\d+", "0:1000000", offsets.read_text(), count=1)
    assert changed
    offsets.write_text(text)
    assert "after the last message" in complaint("lag", str(store), expect=1)


def test_the_help_of_an_export_is_in_the_words_of_the_shell() -> None:
    short, long = call("export", "--help").stdout, call("export", "--help-all").stdout
    assert not {"--split-by", "--broker-conf"} & set(re.findall(r"--[a-z-]+", short))
    assert {"--topic", "--help-all"} <= set(re.findall(r"--[a-z-]+", short))
    assert "--broker-conf" in long
    assert "`" not in long
    shown = " ".join(long.split())
    assert "with --split-by queue: queues" in shown
    assert not re.search(r"the query|source=|table=|[a-z]=(true|false)", shown)
    named = set(re.findall(r"--[a-z-]+", long))
    assert {"--offsets", "--queue", "--mode", "--topic"} <= named
    assert not {"--starting-offsets", "--subscribe", "--assign"} & named
    short, long = call("replay", "--help").stdout, call("replay", "--help-all").stdout
    assert "--topic" in short
    assert "--keep-timestamps" not in short
    assert "--keep-timestamps" in long
    for name in ("replay", "export", "dlq"):
        listed = set(re.findall(r"^  (--[a-z-]+) ", call(name, "--help").stdout, re.MULTILINE))
        assert len(listed - {"--help"}) <= 14, listed


@pytest.mark.parametrize(
    "words",
    [
        ["cat", "--topic", "orders", "--since", "2100-01-01"],
        ["find", "--key", "no-such-key"],
        ["tail", "--topic", "%RETRY%g-slow"],
    ],
)
def test_the_header_comes_without_a_message_too(clean: GoldenStore, words: list[str]) -> None:
    command, *options = words
    store = clean.path
    done = call(command, store, *options, "--header", "--columns", "queueId,topic,body")
    assert done.stdout == "queueId\ttopic\tbody\n"
    assert call(command, store, *options).stdout == ""


def test_the_header_names_the_columns_of_the_rows(golden: Golden) -> None:
    store = golden("clean-5.5.0").path
    columns = ["--columns", "queueOffset,topic,commitLogOffset"]
    done = call("cat", store, "--topic", "orders", "--header", *columns)
    header, *lines = done.stdout.splitlines()
    rows = objects("cat", store, "--topic", "orders", *columns)
    names = header.split("\t")
    assert [dict(zip(names, line.split("\t"), strict=True)) for line in lines] == [
        {name: str(value) for name, value in row.items()} for row in rows
    ]


@pytest.mark.parametrize("swapped", [False, True])
def test_the_table_of_two_stores_has_its_own_command(golden: Golden, swapped: bool) -> None:
    words = ["diff", golden("clean-5.5.0").path]
    said = complaint("table", *(reversed(words) if swapped else words), expect=2)
    assert "rmqstore diff STORE OTHER" in said


@pytest.mark.parametrize(
    ("words", "queue", "offsets"),
    [
        (("--queue", "orders:1"), 1, range(257)),
        (("--topic", "orders", "--queue", "1"), 1, range(257)),
        (("--offsets", "orders:0=3..9"), 0, range(3, 9)),
    ],
)
def test_an_export_takes_queues_and_offsets_as_a_replay_does(
    words: tuple[str, ...], queue: int, offsets: range, golden: Golden, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    (said,) = objects("export", golden("clean-5.5.0").path, "--to", str(target), *words)
    assert said["numbers"]["messagesAdded"] == len(offsets)
    rows = pq.read_table(target, columns=["queueId", "queueOffset"]).to_pylist()
    assert sorted(row["queueOffset"] for row in rows) == list(offsets)
    assert {row["queueId"] for row in rows} == {queue}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--queue", "orders:0", "--topic", "payments"), "topics and single queues exclude"),
        (("--queue", "orders:0", "--assign", '{"orders": [1]}'), "--assign selects queues or"),
        (
            ("--offsets", "orders:0=3..9", "--starting-offsets", '{"orders": {"0": 5}}'),
            "Give either --starting-offsets, or --queue and --offsets",
        ),
    ],
)
def test_an_export_refuses_to_select_queues_in_two_ways(
    words: tuple[str, ...], said: str, golden: Golden, tmp_path: Path
) -> None:
    done = call("export", golden("clean-5.5.0").path, "--to", str(tmp_path / "out"), *words)
    assert (done.returncode, said in done.stderr) == (2, True), done.both
    assert not (tmp_path / "out").exists()
