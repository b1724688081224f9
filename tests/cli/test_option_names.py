"""One vocabulary: each older name of an option does what the new name does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from rmq_store.cli.option_names import old_names
from tests.support.pages.option_pages import pages
from tests.support.pages.vocabulary import uses
from tests.support.running.commands import Golden, call, complaint, objects

COMMANDS = {f"{page.parent.name}/{page.stem}": command for page, _, command in pages()}
NEEDED = {
    "commands/cat": ["--topic", "t"],
    "commands/trace": ["k"],
    "jobs/export": ["--to", "new"],
}

# The older name, the new one, a value. A list by hand: a name that goes missing here fails.
OLDER: list[tuple[str, str, str, str | None]] = [
    ("commands/cat", "--from", "--since", "-2h"),
    ("commands/cat", "--to", "--until", "-1h"),
    ("commands/find", "--from", "--since", "-2h"),
    ("commands/find", "--to", "--until", "-1h"),
    ("commands/usage", "--from", "--since", "-2h"),
    ("commands/usage", "--to", "--until", "-1h"),
    ("commands/rebuild", "--config", "--broker-conf", "b.conf"),
    ("commands/salvage", "--config", "--broker-conf", "b.conf"),
    ("commands/recover", "--config", "--broker-conf", "b.conf"),
    ("commands/recover", "--mode", "--method", "broker"),
    ("jobs/dlq", "--origin-topic", "--topic", "t"),
    ("jobs/dlq", "--resend", "--to", "new"),
    ("jobs/dlq", "--to-store", "--to", "new"),
    ("jobs/replay", "--to-store", "--to", "new"),
    ("jobs/replay", "--include-system-topics", "--system", None),
    *(
        (f"jobs/{job}", old, new, value)
        for job, names in {
            "dlq": ("startingTimestamp", "endingTimestamp", "brokerConf", "brokerName"),
            "export": (
                *("startingTimestamp", "endingTimestamp", "brokerConf", "brokerName"),
                *("includeSystemTopics", "tags", "keys", "subscribePattern", "startingOffsets"),
                *("startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"),
                *("endingOffsets", "endingOffsetsByTimestamp", "failOnDataLoss", "splitBy"),
                *("minPartitions", "maxRecordsPerPartition", "maxBytesPerPartition"),
                *("verifyQueue", "maxBodyBytes", "unwrapBatches", "storageOptions"),
            ),
        }.items()
        for name in names
        for old, new, value in [(f"--{name}", "", "true")]
    ),
]


def option_of(command: click.Command, old: str) -> click.Parameter:
    (found,) = [param for param in command.params if old in old_names(param)]
    return found


def parsed(front: str, words: Sequence[str]) -> dict[str, Any]:
    with COMMANDS[front].make_context(front, ["STORE", *NEEDED.get(front, ()), *words]) as context:
        return context.params


@pytest.mark.parametrize(("front", "old", "new", "value"), OLDER, ids=lambda one: str(one))
def test_an_older_name_does_what_the_new_one_does(
    front: str, old: str, new: str, value: str | None
) -> None:
    option = option_of(COMMANDS[front], old)
    assert new in ("", option.opts[0])
    values = [] if value is None else [value]
    given = parsed(front, [old, *values])
    assert given == parsed(front, [option.opts[0], *values])
    assert given != parsed(front, [])


def test_every_older_name_is_tested() -> None:
    found = {
        (front, old)
        for front, command in COMMANDS.items()
        for param in command.params
        for old in old_names(param)
    }
    assert found == {(front, old) for front, old, _, _ in OLDER}


def test_a_word_takes_a_value_everywhere_or_nowhere() -> None:
    for word, its in uses().items():
        alone = {one.option.is_flag or one.option._flag_needs_value for one in its}
        assert len(alone) == 1, f"{word}: {[one.front for one in its]}"


@pytest.mark.parametrize("command", ["rebuild", "salvage"])
def test_the_new_store_is_named_by_to_or_as_an_argument(
    golden: Golden, tmp_path: Path, command: str
) -> None:
    store = golden("clean-5.3.3").path
    options = ("--link",) if command == "rebuild" else ()
    (one,) = objects(command, store, "--to", str(tmp_path / "one"), *options)
    (other,) = objects(command, store, str(tmp_path / "other"), *options)
    own = {"target": "", "seconds": 0}
    assert {**one, **own} == {**other, **own}
    twice = call(command, store, str(tmp_path / "a"), "--to", str(tmp_path / "b"))
    assert (twice.returncode, "named twice" in twice.stderr) == (2, True)
    none = call(command, store)
    assert (none.returncode, "missing option --to" in none.stderr) == (2, True)


def test_json_of_a_job_is_stdout_or_a_file(golden: Golden, tmp_path: Path) -> None:
    """Also before the STORE, which is no file then."""
    store, file = golden("clean-4.9.7").path, tmp_path / "report.json"
    for words in ([store, "--json"], ["--json", store], ["--json", "-", store]):
        done = call("dlq", *words, "--engine", "local")
        assert done.stdout.startswith("{"), words
        assert "dlq: of whom" in done.stderr
    done = call("dlq", "--json", str(file), store, "--engine", "local")
    assert "dlq: of whom" in done.stdout
    assert file.read_text().startswith("{")


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
        (["--system", "false"], {"includeSystemTopics": "false"}),
        (["--system", "STORE"], {"includeSystemTopics": "true"}),
    ],
    ids=str,
)
def test_the_words_of_an_export_are_options_of_the_source(
    words: list[str], selected: dict[str, str]
) -> None:
    from rmqstore_jobs.export import main

    store = [] if "STORE" in words else ["STORE"]
    spec = main.ask(main.parse([*words, *store, "--to", "new"]))
    assert (spec.options, spec.store) == (selected, "STORE")


def test_a_queue_number_of_a_replay_is_of_each_topic() -> None:
    from rmq_store.errors import InvalidArgumentError
    from rmqstore_jobs.replay import main

    def queues(*words: str) -> tuple[Any, Any]:
        spec = main.ask(main.parse(["STORE", "--to", "new", *words]))
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
        ("find", "STORE", "--since", "-2h", "--from", "-1h"),
        ("export", "STORE", "--to", "new", "--since", "-2h", "--startingTimestamp", "-1h"),
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


def test_a_rebuild_takes_the_log_in_one_way(golden: Golden, tmp_path: Path) -> None:
    store = golden("clean-5.5.0")
    words = ["rebuild", store.path, "--to", f"{tmp_path}/new"]
    for more in (["--copy", "--log", "link"], ["--link", "--log", "copy"], ["--copy", "--link"]):
        assert "only one of --log, --copy and --link" in complaint(*words, *more, expect=2)
    assert not (tmp_path / "new").exists()
