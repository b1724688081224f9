"""What the commands of the jobs share: source options, Spark, exit codes."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from rmq_store.cli import options as cli
from rmq_store.cli.command import Command, exit_code_of
from rmq_store.cli.options import (
    DeclaredOption,
    OptionOfHelpAll,
    on_broken_pipe,
    rare_flag,
    rare_option,
)
from rmq_store.errors import LOG, AccessError, DataLossError, json_text, spoken_as
from rmq_store.heap_settings import keep_freed_memory
from rmq_store.questions.answer_by_shares import ask, processes_for
from rmq_store.reading.query import FAILFAST
from rmq_store.scan.option_values import parse_size
from rmq_store.scan.options import OPTIONS
from rmq_store.scan.parse_options import hide_secrets
from rmq_store.text.progress import Progress
from rmq_store.verify.verdict import Verdict
from rmq_store.verify.verify_store import VerifyQuestion
from rmqstore_jobs.running.failures import AlreadyDoneError, is_damage, spark_errors_said
from rmqstore_jobs.running.results import JobResult
from rmqstore_jobs.running.source_options import advice_in_shell_words, pinned_store
from rmqstore_jobs.running.spark_engine import Session, SparkEngine, builder_for, runs_on_spark

EXIT_OK, EXIT_NOT_ALL, EXIT_REFUSED, EXIT_STOPPED = range(4)
_EXIT_CODES = (
    "Exit codes: 0 no problem; 1 finished with problems; 2 refused, or prevented by damage; "
    "3 stopped early, run the same command to continue."
)
# Left out, because a job reads the messages of one store, which its argument names.
_OF_THE_JOB = (
    *("path", "stores", "unavailableStores", "table", "checkpointLocation"),
    *("source", "includeUnqueued", "compacted"),
)
STORE_OPTIONS = ("brokerName", "brokerConf")
SELECTION = tuple(option.name for option in OPTIONS if option.name not in _OF_THE_JOB)
RANGES = (  # those that select queue ranges
    *(*STORE_OPTIONS, "topic", "subscribe", "subscribePattern", "assign", "includeSystemTopics"),
    *(o.name for o in OPTIONS if o.name.startswith(("starting", "ending"))),
    "failOnDataLoss",
)

size = cli.option_type(parse_size)  # in bytes, or with k, m, g
_OPTIONS = {
    "store": cli.STORE_PATH,
    "as_json": cli.JSON.but(help="Print the report as one JSON object, and the tables on stderr."),
    "report": rare_option("--report", metavar="FILE", help="Write the report as JSON to FILE too."),
    "verify": rare_flag("--verify", help="Verify the store first. A damaged one is refused."),
    "checksums": rare_flag(
        "--checksums", help="Report size and SHA-256 of every file of the store."
    ),
}
OF_THE_RUN = ("as_json", "report", "engine", "master", "verify")
"""Options of every job that its spec does not have."""
_ENGINE_OPTIONS = {
    "master": cli.MASTER.but(
        OptionOfHelpAll, help="Spark's master (default: spark-submit's, else local)."
    ),
    "engine": cli.ENGINE.but(
        OptionOfHelpAll,
        default=cli.AUTO,
        help="Work in this process (local) or on Spark. auto: local up to a log of 4 GiB, "
        "without --master and spark-submit.",
    ),
}

_Spec = TypeVar("_Spec")
Arguments = Mapping[str, Any]
Run = Callable[[Session, Any, Callable[[], bool]], JobResult]


class Job(Command):
    """A job as a command. It runs in this process or on Spark, prints the result, and returns the exit
    code. The job checks between parts whether to stop, so signals end it cleanly.

    `spec_of` makes the job's spec from the given `options`; all jobs also have STORE, --json, --report,
    --checksums and --verify, and with `engines` --engine and --master. `validate` raises for a spec that
    cannot be run, before Spark starts: a session takes some ten seconds. `prepare` configures the session
    for the spec. `needs_spark`: whether a spec cannot do without.
    """

    def __init__(
        self,
        name: str,
        about: str,
        run: Run,
        spec_of: Callable[[Arguments], Any],
        options: Mapping[str, DeclaredOption],
        *,
        validate: Callable[[Any], object],
        prepare: Callable[[Any, Any], Any] = lambda builder, spec: builder,
        needs_spark: Callable[[Any], bool] = lambda spec: False,
        engines: bool = True,
    ) -> None:
        super().__init__(
            name,
            callback=self._called,
            params=cli.click_params(
                {**_OPTIONS, **(_ENGINE_OPTIONS if engines else {}), **options}
            ),
            help=about,
            epilog=_EXIT_CODES,
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        )
        self.run, self.spec_of, self.validate = run, spec_of, validate
        self._name, self._prepare, self._needs_spark = name, prepare, needs_spark

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Run with the arguments of this process, or with `argv`. Returns the exit code."""
        return exit_code_of(self._name, lambda: self.main(argv, self._name, standalone_mode=False))

    def parse(self, argv: Sequence[str]) -> dict[str, Any]:
        """The given options by name. Raises click's errors."""
        with self.make_context(self._name, list(argv)) as context:
            return context.params

    def _called(self, **given: Any) -> int:
        keep_freed_memory()
        return exit_code_of(self._name, lambda: self._exit_code(given))

    def _exit_code(self, arguments: Arguments) -> int:
        with (
            spoken_as(partial(advice_in_shell_words, command=self)),
            # A connection that a broker closes is an error; only the reader of our output may leave.
            on_broken_pipe(signal.SIG_IGN),
            spark_errors_said(),
        ):
            try:
                answer = self._answer(arguments)
            except AlreadyDoneError as done:
                # With nothing to do: that is what a program asked for that runs the job again.
                click.echo(f"{self._name}: {done}", err=True)
                if arguments["as_json"]:
                    print(json_text({"job": self._name, "ok": True, "alreadyDone": True}))
                return EXIT_OK
        if answer.stopped_by is not None:
            return EXIT_REFUSED if is_damage(answer.stopped_by) else EXIT_STOPPED
        return EXIT_OK if answer.ok else EXIT_NOT_ALL

    def _answer(self, arguments: Arguments) -> JobResult:
        _check_report(arguments["report"])
        spec, spark = self.spec_of(arguments), None
        with warnings_noted() as warnings:
            self.validate(spec)
            needed = self._needs_spark(spec)
            # Start the session before our signal handlers, because it replaces the one for SIGINT.
            if "engine" in arguments and runs_on_spark(self._name, arguments, needed=needed):
                spark = self._prepare(
                    builder_for(self._name, arguments["master"]), spec
                ).getOrCreate()
            verdict = verdict_first(spark, arguments) if arguments["verify"] else None
            with asked_to_stop() as should_stop:
                answer = self.run(spark, spec, should_stop)
            if verdict is not None:
                sentence = verdict.sentence()
                changes: dict[str, Any] = {"source": replace(answer.source, verified=sentence)}
                if verdict.lacks_messages:
                    problems = (*answer.problems, f"the store is {sentence}")
                    changes |= {"problems": problems, "ok": False}
                answer = replace(answer, **changes)  # type: ignore[type-var]
        print_result(answer, arguments["as_json"], arguments["report"], len(warnings))
        return answer


def verdict_first(spark: Session, arguments: Mapping[str, Any]) -> Verdict:
    """The verdict on the store of a job. Raises DataLossError for damage, unless the job leaves that out."""
    options = {
        "brokerName": arguments.get("brokerName") or arguments.get("broker_name"),
        "brokerConf": arguments.get("brokerConf") or arguments.get("broker_conf"),
        "storageOptions": arguments.get("storageOptions"),
    }
    pinned = pinned_store(arguments["store"], {k: v for k, v in options.items() if v is not None})
    with pinned.open() as store, Progress("verify") as progress:
        engine = processes_for(store) if spark is None else SparkEngine(spark)
        verdict = ask(VerifyQuestion(), pinned, engine, progress=progress).verdict
    if verdict.lacks_messages and (arguments.get("mode") or FAILFAST).upper() == FAILFAST:
        helps = "" if verdict.help is None else f": {verdict.help.command}"
        raise DataLossError(
            arguments["store"],
            reason=f"--verify: the store is {verdict.sentence()}",
            advice=f"rmqstore verify says more{helps}. Without --verify the job reads what it can",
        )
    return verdict


def spec_from(kind: Callable[..., _Spec], arguments: Arguments, names: Sequence[str]) -> _Spec:
    """The spec of a job: its own options as fields, and as `options` those of the source that are given."""
    rest = {name: value for name, value in arguments.items() if name not in (*OF_THE_RUN, *names)}
    options = {name: arguments[name] for name in names if arguments.get(name) is not None}
    return kind(**rest, options=hide_secrets(options))


def print_result(answer: JobResult, as_json: bool, report: str | None, warnings: int) -> None:
    """Print the tables, or with `as_json` the JSON, and the tables on stderr; write the report."""
    # Like other shell tools: end without an error when the reader of the output closes it. Only here,
    # because a connection that breaks during a job's work is an error.
    with on_broken_pipe(signal.SIG_DFL):
        with redirect_stdout(sys.stderr) if as_json else nullcontext():
            answer.show(warnings)
        if as_json:
            print(answer.to_json())
        sys.stdout.flush()
    if report is not None:
        answer.save(report)


def _check_report(report: str | None) -> None:
    """Raise AccessError now if the report could not be written at the end."""
    if report is None:
        return
    path = Path(report).absolute()
    written = path if path.exists() else path.parent
    if path.is_dir() or not path.parent.is_dir() or not os.access(written, os.W_OK):
        raise AccessError(
            report,
            reason="--report: the report cannot be written there",
            advice="Name a file in an existing folder that is writable",
        )


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """A function that says whether SIGINT or SIGTERM arrived, so that the job can stop cleanly."""
    came: list[int] = []
    stops = (signal.SIGINT, signal.SIGTERM)
    before = {stop: signal.signal(stop, lambda number, _: came.append(number)) for stop in stops}
    try:
        yield lambda: bool(came)
    finally:
        for stop, handler in before.items():
            signal.signal(stop, handler)


@contextmanager
def warnings_noted() -> Iterator[set[str]]:
    """The warnings that this process logs meanwhile. A handler would keep Python from showing them."""
    messages: set[str] = set()

    def note(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            messages.add(record.getMessage())
        return True

    LOG.addFilter(note)
    try:
        yield messages
    finally:
        LOG.removeFilter(note)
