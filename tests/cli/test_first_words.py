"""What a newcomer types: completion, groups of --help, words in another order, a search for nothing."""

from __future__ import annotations

import pytest
from click.shell_completion import ShellComplete

from rmq_store.cli.main import COMMANDS, other_commands, rmqstore
from rmq_store.errors import nearest
from tests.support.running.commands import Golden, call, run


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
    done = call("table", path, "topicz")
    assert (done.returncode, "there is no table" in done.stderr) == (2, True)


def test_a_search_for_nothing_is_refused(golden: Golden) -> None:
    path = golden("proxy-5.5.0").path
    done = call("find", path)
    assert (done.returncode, "something to search for" in done.stderr) == (2, True)
    assert len(run("find", path, "--limit", "3").splitlines()) == 3


def test_an_error_lists_ten_names() -> None:
    names = [f"topic-{number:02}" for number in range(12)]
    assert nearest("zzz", names) == f"Known names: {', '.join(names[:10])} and 2 more"
    assert nearest("zzz", names[:10]) == f"Known names: {', '.join(names[:10])}"
