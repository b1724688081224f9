"""One vocabulary: a word means the same everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rmq_store.cli.main import COMMANDS
from tests.support.golden import Golden, GoldenStore
from tests.support.pages.option_pages import uses
from tests.support.running.commands import call, complaint, objects


def test_a_word_takes_a_value_everywhere_or_nowhere() -> None:
    for word, its in uses().items():
        alone = {one.option.is_flag for one in its}
        assert len(alone) == 1, f"{word}: {[one.front for one in its]}"


@pytest.mark.parametrize("command", ["rebuild", "salvage"])
def test_the_new_store_is_named_by_to_or_as_an_argument(
    golden: Golden, tmp_path: Path, command: str
) -> None:
    store = golden("clean-5.3.3").path
    options = ("--log", "link") if command == "rebuild" else ()
    (one,) = objects(command, store, "--to", str(tmp_path / "one"), *options)
    (other,) = objects(command, store, str(tmp_path / "other"), *options)
    own = {"target": "", "seconds": 0}
    assert {**one, **own} == {**other, **own}
    twice = call(command, store, str(tmp_path / "a"), "--to", str(tmp_path / "b"))
    assert (twice.returncode, "named twice" in twice.stderr) == (2, True)
    assert "missing option --to" in complaint(command, store, expect=2)


def test_json_is_a_flag_and_a_report_is_a_file(golden: Golden, tmp_path: Path) -> None:
    store, file = golden("clean-4.9.7").path, tmp_path / "report.json"
    for words in ([store, "--json"], ["--json", store]):
        done = call("dlq", *words, "--report", str(file))
        (line,) = done.stdout.splitlines()
        assert json.loads(line)["job"] == "dlq"
        assert "dlq: of whom" in done.stderr
        assert json.loads(file.read_text()) == json.loads(line)
    done = call("dlq", store)
    assert "dlq: of whom" in done.stdout
    assert f"--report {file}" in complaint("dlq", store, "--json", str(file), expect=2)


def test_json_has_one_form(golden: Golden) -> None:
    """Whether Arrow writes it, or Python."""
    store = golden("clean-5.5.0").path
    asked = [
        *(["info"], ["topics"], ["lag"], ["usage"], ["verify"], ["recover"], ["transactions"]),
        *(["find", "--limit", "2"], ["cat", "--topic", "orders", "--limit", "2"], ["dlq"]),
        *(["trace", "ORDER_0"], ["sql", "SELECT 1 AS a, 'x' AS b"]),
        ["sql", "SELECT [1, 2] AS c, {'d': 1} AS e"],
    ]
    for command, *words in asked:
        lines = call(command, store, *words, "--json").stdout.splitlines()
        assert lines
        for line in lines:
            same = json.dumps(json.loads(line), ensure_ascii=False, separators=(",", ":"))
            assert line == same, command


def test_a_repeated_word_selects_more(golden: Golden) -> None:
    """Never only the last one."""
    store = golden("clean-5.5.0").path
    both = objects("find", store, "--tag", "paid", "--tag", "shipped")
    assert {row["tags"] for row in both} == {"paid", "shipped"}
    assert both == objects("find", store, "--tag", "paid || shipped")
    groups = {row["consumerGroup"] for row in objects("lag", store)}
    first, second = sorted(groups)[:2]
    rows = objects("lag", store, "--group", first, "--group", second)
    assert {row["consumerGroup"] for row in rows} == {first, second}


@pytest.mark.parametrize(
    ("words", "selected"),
    [
        (["--topic", "orders", "--topic", "payments"], {"topic": "orders,payments"}),
        (["--tag", "a", "--tag", "b || c"], {"tags": "a || b || c"}),
        (["--key", "a", "--key", "b"], {"keys": "a || b"}),
        (["--system"], {"includeSystemTopics": "true"}),
        (["--system", "STORE"], {"includeSystemTopics": "true"}),
        (["--no-unwrap-batches"], {"unwrapBatches": "false"}),
        (["--no-fail-on-data-loss"], {"failOnDataLoss": "false"}),
        (["--verify-queue"], {"verifyQueue": "true"}),
        ([], {}),
    ],
    ids=str,
)
def test_the_words_of_an_export_are_options_of_the_source(
    words: list[str], selected: dict[str, str]
) -> None:
    from rmqstore_jobs.export import main

    store = [] if "STORE" in words else ["STORE"]
    spec = main.spec_of(main.parse([*words, *store, "--to", "new"]))
    assert (spec.options, spec.store) == (selected, "STORE")


def test_a_queue_number_of_a_replay_is_of_each_topic() -> None:
    from rmq_store.errors import InvalidArgumentError
    from rmqstore_jobs.replay import main

    def queues(*words: str) -> tuple[Any, Any]:
        spec = main.spec_of(main.parse(["STORE", "--to", "new", *words]))
        return spec.queues, spec.topics

    topics = ("--topic", "a", "--topic", "b")
    assert queues(*topics, "--queue", "3") == ((("a", 3), ("b", 3)), ())
    assert queues("--queue", "a:1") == ((("a", 1),), ())
    with pytest.raises(InvalidArgumentError, match="needs --topic"):
        queues("--queue", "3")


@pytest.mark.parametrize(
    "words",
    [
        ("cat", "STORE", "--topic", "orders", "--topic", "payments"),
        ("find", "STORE", "--since", "-2h", "--since", "-1h"),
        ("export", "STORE", "--to", "new", "--since", "-2h", "--since", "-1h"),
        ("dlq", "STORE", "--top", "1", "--top", "2"),
    ],
    ids=lambda words: words[0],
)
def test_an_option_that_counts_once_is_refused_twice(
    golden: Golden, words: tuple[str, ...]
) -> None:
    """click takes the last and drops the others."""
    store = golden("clean-5.5.0").path
    done = call(*(store if word == "STORE" else word for word in words))
    assert (done.returncode, "is given 2 times" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cat", "STORE", "orders"), "'orders' belongs to no option. Did you mean --topic orders?"),
        (("find", "STORE", "A_1"), "Did you mean --topic A_1, or --key A_1?"),
        (("info", "STORE", "more"), "'more' belongs to no option"),
        (("export", "STORE", "--to", "x", "--unwrap-batches", "false"), "A flag takes no value"),
        (("topics", "STORE", "xx", "yy"), "'xx', 'yy' belong to no option"),
        (("sql", "STORE", "select 1", "--json", "--body", "hex"), "--body is for text"),
        (("sql", "STORE", "select 1", "--csv", "--body", "hex"), "--body is for text"),
        (("table", "STORE", "topicz"), "there is no table 'topicz'. Did you mean 'topics'?"),
        (("cat", "STORE", "--topic", "nope"), "Known names: broker-a, documents, golden, "),
        (("cat", "STORE", "--topic", "orders", "--charset", "nope"), "Known names: ascii, big5"),
        (("export", "STORE", "out"), "Did you mean --to out, "),
        (("replay", "STORE", "out"), "Did you mean --to out, "),
        (("table", "STORE"), "NAME is missing. The tables: checkpoint, config, damage"),
        (("table", "files"), "STORE is missing. The tables: checkpoint"),
    ],
)
def test_a_word_too_many_or_too_few_is_named(
    golden: Golden, words: tuple[str, ...], said: str
) -> None:
    store = golden("clean-5.5.0").path
    done = call(*(store if word == "STORE" else word for word in words))
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_lists_all_its_options(command: str) -> None:
    listed, shown = call(command, "--help-all"), call(command, "--help").stdout
    assert listed.returncode == 0
    assert (listed.stdout != shown) is ("--help-all" in shown)
    assert set(shown.split()) <= set(listed.stdout.split())


def test_help_is_a_command_too() -> None:
    assert call("help").stdout == call("help", "help").stdout == call("--help").stdout
    assert call("help", "lag").stdout == call("lag", "--help").stdout


def test_several_keys_find_the_messages_of_each(clean: GoldenStore) -> None:
    keyed = [r for r in clean.truth if r["topic"] in ("orders", "payments") and r["keys"]]
    first, second = (keyed[at]["keys"].split()[0] for at in (3, -3))
    wanted = {
        (r["topic"], r["queueId"], r["queueOffset"])
        for r in keyed
        if {first, second} & set(r["keys"].split())
    }
    words = ("--key", first, "--key", second)
    topics = ("--topic", "orders", "--topic", "payments")
    found = objects("find", clean.path, *words, *topics)
    assert {(r["topic"], r["queueId"], r["queueOffset"]) for r in found} == wanted
    sql = "SELECT topic, queueId, queueOffset FROM messages WHERE topic IN ('orders', 'payments')"
    rows = objects("sql", clean.path, sql, *words)
    assert {(r["topic"], r["queueId"], r["queueOffset"]) for r in rows} == wanted
    assert len(wanted) > 1


@pytest.mark.parametrize(
    "words", [("lag", "--max-lag"), ("cat", "--offset"), ("tail", "-n"), ("dlq", "--top")]
)
def test_an_option_that_takes_a_number_says_so(words: tuple[str, str], golden: Golden) -> None:
    done = call(words[0], golden("clean-5.5.0").path, words[1], "x")
    assert (done.returncode, "'x' is not a valid whole number" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("command", "typed", "word"),
    [
        ("cat", "--startingOffsets", "--offset"),
        ("cat", "--starting-timestamp=1", "--since"),
        ("find", "--endingTimestamp=1", "--until"),
        ("find", "--keys", "--key"),
        ("tail", "--mode", "--skip-damaged"),
        ("tail", "--subscribe", "--topic"),
        ("recover", "--mode", "--method"),
        ("dlq", "--endingTimestamp=1", "--until"),
        ("lag", "--grup", "--group"),
        ("export", "--startingTimestamp", "--since"),
    ],
)
def test_an_unknown_option_is_named_as_the_command_has_it(
    command: str, typed: str, word: str
) -> None:
    said = complaint(command, "store", typed, expect=2)
    assert f"unknown option {typed.partition('=')[0]}. Did you mean {word!r}?" in said


@pytest.mark.parametrize(
    "words",
    [
        *("cat store", "cat store --limitt 3", "usage store --by week", "tpoics store"),
        *("dlq store --grup g", "lag store --group a --group"),
    ],
)
def test_what_the_shell_refuses_has_the_code_of_an_invalid_argument(words: str) -> None:
    done = call(*words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("Error: [RMQSTORE_INVALID_ARGUMENT] ")
