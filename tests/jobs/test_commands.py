"""Every job as a command: its help, what it says of damage, and that its functions travel whole."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

import click
import pytest
from pyspark import cloudpickle

from rmq_store import MessageStore
from rmqstore_jobs import dlq
from rmqstore_jobs.exporting import export_files
from rmqstore_jobs.replay_targets import to_broker
from rmqstore_jobs.replay_targets.to_broker import BrokerAccess
from rmqstore_jobs.replaying.replay_spec import ReplaySpec
from rmqstore_jobs.running import results
from rmqstore_jobs.running.job_command import EXIT_OK, EXIT_REFUSED, Job
from rmqstore_jobs.running.spark_engine import ship_jobs
from tests.support.checkout import CHECKOUT
from tests.support.damage import flip_in_log
from tests.support.golden import Golden, GoldenStore, unpack
from tests.support.running.child import run_python
from tests.support.running.commands import call, sent_to

JOBS = ("dlq", "export", "replay")
SCRIPTS = ("export", "rebuild", "replay", "verify")  # those that spark-submit can run


def test_jobs_are_commands_of_rmqstore(clean: GoldenStore, tmp_path: Path) -> None:
    target = tmp_path / "new"
    done = call("replay", clean.path, "--to", str(target), "--topic", "orders")
    assert done.returncode == EXIT_OK, done.both
    with MessageStore.open(target) as opened:
        assert sum(b.num_rows for b in opened.read_batches()) == len(sent_to(clean, "orders"))
    done = call("dlq", "--help")
    assert "Usage: rmqstore dlq [OPTIONS] STORE" in done.both
    done = call("export", clean.path, "--topik", "orders")
    assert done.returncode == EXIT_REFUSED
    assert "--topic" in done.both
    assert "replay " in call("--help").both
    wrong = call("exprt", clean.path)
    assert wrong.returncode == EXIT_REFUSED
    assert "Did you mean 'export'?" in wrong.both


def test_a_pipe_gets_numbers_without_commas(golden: Golden, tmp_path: Path) -> None:
    for options in (("--checksums",), ()):
        target = tmp_path / f"csv{len(options)}"
        done = call("export", golden("clean-5.5.0").path, "--to", str(target), *options)
        assert done.returncode == EXIT_OK, done.both
        assert re.search("log range\t0 to [0-9]{6}", done.stdout)
        assert not re.search("[0-9],[0-9]{3}", done.stdout), done.stdout


def test_they_need_no_spark(golden: Golden, tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import importlib.util as util; find = util.find_spec\n"
        "util.find_spec = lambda name, *a: None if name == 'pyspark' else find(name, *a)\n"
        "sys.argv = ['rmqstore', *sys.argv[1:]]\n"
        "from rmq_store.cli.main import main; main()"
    )
    store = golden("clean-5.5.0").path
    orders = ["export", store, "--to", str(tmp_path / "out"), "--topic", "orders"]
    done = run_python("-c", script, *orders)
    assert done.returncode == EXIT_OK, done.stderr
    assert done.stderr.startswith("export: running in this process\n")
    refused = run_python("-c", script, "verify", store, "--engine", "spark")
    assert refused.returncode == EXIT_REFUSED
    assert "pip install 'rmqstore[spark]'" in refused.stderr


@pytest.mark.campaign
@pytest.mark.parametrize("name", SCRIPTS)
def test_help_from_another_folder(name: str, tmp_path: Path) -> None:
    done = run_python(str(CHECKOUT / "jobs" / f"{name}.py"), "--help", cwd=tmp_path)
    assert done.returncode == EXIT_OK, done.stderr
    assert "--json" in done.stdout


@pytest.mark.parametrize("name", JOBS)
def test_every_option_of_a_jobs_own_is_in_its_spec(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one, for some exclude each other: what is given must make another spec."""
    main: Job = import_module(f"rmqstore_jobs.{name}").main
    for module in ("rmqstore_jobs.replay", main.run.__module__):
        # Options alone: no check of the whole.
        monkeypatch.setattr(import_module(module), "check_spec", lambda spec: None, raising=False)
    arguments = [p for p in main.params if isinstance(p, click.Argument)]
    words = ["STORE", *("KEY" for _ in arguments[1:])]
    needed: list[str] = []
    for option in main.params:
        if isinstance(option, click.Option) and option.required:
            needed += given(option, "0")
    plain = main.spec_of(main.parse([*words, *needed]))
    for option in main.params:
        if isinstance(option, click.Option) and option.name not in (
            "as_json",
            "report",
            "engine",
            "master",
            "verify",
            "help",
        ):
            rest = [] if option.required else needed
            changed = main.spec_of(main.parse([*words, *rest, *given(option, "7")]))
            assert changed != plain, f"{name} {option.opts[0]} is dropped"


def given(option: click.Option, number: str) -> list[str]:
    """An option as a command line has it, with a value that is not its default."""
    if option.is_flag:
        return [option.opts[0]]
    if option.name == "charset":
        return [option.opts[0], "gbk"]
    if isinstance(option.type, click.Choice):
        return [option.opts[0], next(c for c in option.type.choices if c != option.default)]
    forms = {
        "--offsets": f"T:{number}=1..2",
        "--queue": f"T:{number}",
        "--map-topic": f"A=B{number}",
        "--map-queue": f"{number}=1",
    }
    return [option.opts[0], forms.get(option.opts[0], number)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dlq", "STORE", "--group", "nobody"], "there is no group 'nobody'"),
        (["dlq", "STORE", "--since", "1795253026"], "as seconds"),
        (["export", "STORE", "--to", "OUT", "--topic", "ordres"], "Did you mean 'orders'?"),
        (["export", "STORE", "--to", "STORE/x"], "must be separate folders"),
        (["export", "STORE", "--to", "OUT", "--until", "soon"], "is not a time"),
        (["replay", "STORE", "--to", "OUT", "--topic", "ordres"], "Did you mean 'orders'?"),
        (["replay", "STORE", "--to", "OUT", "--queue", "orders:77"], "has no queue 77"),
        (["replay", "STORE", "--to", "OUT", "--since", "-1s", "--until", "-2s"], "not before"),
        (["replay", "STORE", "--to", "OUT", "--release", "9.9"], "is not supported"),
    ],
    ids=lambda value: "-".join(value[:1]) if isinstance(value, list) else None,
)
def test_a_job_looks_at_its_arguments_before_spark_starts(
    golden: Golden,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    """A session takes ten seconds; a misspelt topic must not."""

    def started(*_: object) -> None:
        raise AssertionError("a Spark session was asked for")

    monkeypatch.setattr("rmqstore_jobs.running.job_command.builder_for", started)
    store, out = golden("clean-5.5.0").path, str(tmp_path / "out")
    main: Job = import_module(f"rmqstore_jobs.{words[0]}").main
    given = [word.replace("STORE", store).replace("OUT", out) for word in words[1:]]
    on_spark = [] if words[0] == "dlq" else ["--engine", "spark"]
    assert main([*given, *on_spark]) == EXIT_REFUSED
    assert said in capsys.readouterr().err
    assert not Path(out).exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rebuild", "STORE", "--to", "STORE/x", "--verify"), "must be separate folders"),
        (("verify", "STORE", "--broker-conf", "/no/such.conf"), "does not exist"),
        (("verify", "/no/such/store"), "RMQSTORE_NOT_A_STORE"),
    ],
)
def test_a_command_looks_at_its_arguments_before_spark_starts(
    golden: Golden, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    def started(*_: object) -> None:
        raise AssertionError("a Spark session was asked for")

    monkeypatch.setattr("rmqstore_jobs.running.spark_engine.builder_for", started)
    store = golden("clean-5.5.0").path
    done = call(*(word.replace("STORE", store) for word in words), "--engine", "spark")
    assert (done.returncode, said in done.stderr) == (EXIT_REFUSED, True), done.both


def test_a_submitted_command_chooses_by_the_bytes_of_the_log(golden: Golden) -> None:
    script, store = str(CHECKOUT / "jobs" / "verify.py"), golden("clean-5.5.0").path
    done = run_python(script, store, "--json")
    assert done.stderr.startswith("verify: running in this process")
    here = call("verify", store, "--json")
    assert done.stdout.count("\n") == here.stdout.count("\n") > 0
    assert done.returncode == here.returncode


@pytest.mark.parametrize(
    "words",
    [
        ("export", "--to", "FILE/out"),
        ("replay", "--to", "FILE/out"),
        ("replay", "--to-parquet", "FILE/out"),
        ("dlq", "--report", "FILE/report.json"),
        ("dlq", "--report", "FOLDER"),
    ],
)
def test_where_nothing_can_be_written_it_is_refused_in_our_words(
    golden: Golden, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    (tmp_path / "file").touch()
    name, option, place = words
    place = place.replace("FILE", str(tmp_path / "file")).replace("FOLDER", str(tmp_path))
    main: Job = import_module(f"rmqstore_jobs.{name}").main
    assert main([golden("clean-5.5.0").path, option, place]) == EXIT_REFUSED
    printed = capsys.readouterr()
    assert f"{name}: [RMQSTORE_ACCESS] " in printed.err
    assert printed.out == ""


def test_a_refusal_of_the_operating_system_has_no_traceback(
    golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dlq.main([golden("clean-5.5.0").path, "--report", "/dev/full"]) == EXIT_REFUSED
    assert "dlq: [RMQSTORE_ACCESS] " in capsys.readouterr().err


def test_an_error_of_an_executor_is_reported_in_our_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dead letter whose record is damaged: FAILFAST is the source's default."""
    store = unpack("clean-4.9.7", tmp_path)
    record = next(r for r in store.truth if r["topic"].startswith("%DLQ%"))
    flip_in_log(store, record["commitLogOffset"] + 4, 0xFF)  # the magic number
    assert dlq.main([store.path]) == EXIT_REFUSED
    reported = capsys.readouterr().err
    assert "RMQSTORE_" in reported
    assert "Traceback" not in reported


def functions() -> Sequence[object]:
    spec = ReplaySpec("/store", to_broker="127.0.0.1:1", failed="/failed")
    sending = partial(to_broker._send_rows, spec, BrokerAccess.of(spec), 2)
    return [results.file_sum, export_files.summed_file, sending]


@pytest.mark.campaign
def test_functions_travel_to_executors_without_this_folder() -> None:
    ship_jobs()
    for function in functions():
        pickled = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
        code = "import sys, pickle; sys.modules['jobs'] = None; f = pickle.load(sys.stdin.buffer)"
        done = subprocess.run(
            [sys.executable, "-c", code + "; assert callable(f)"],
            input=pickled,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()


def test_names_and_values_stand_in_columns_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    results.print_pairs("total", [("bytes", 20_000), ("dead letters", "none")])
    shown = click.unstyle(capsys.readouterr().out).splitlines()
    assert shown[-2:] == ["bytes         20,000", "dead letters  none"]
