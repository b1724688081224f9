"""What the commands of the jobs share: options as the source has them, Spark, exit codes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import click
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console

import jobs
from jobs.answer import Answer, show
from jobs.wording import reason_of
from rmq_store.errors import InvalidArgumentError, StoreError, nearest
from rmq_store.heap import keep_freed_memory
from spark_source.options import OPTIONS

EXIT_OK, EXIT_NOT_ALL, EXIT_REFUSED, EXIT_STOPPED = range(4)
_EXIT_INTERRUPTED = 130
_EXIT_CODES = (
    "Exit codes: 0 all is well; 1 finished, and something is wrong or missing; 2 refused; "
    "3 stopped early, and the same command goes on."
)
# A job reads the messages of one store, which its argument names.
_OF_THE_JOB = ("path", "stores", "unavailableStores", "table", "source", "includeUnqueued")
STORE_OPTIONS = ("brokerName", "brokerConf")
SELECTION = tuple(option.name for option in OPTIONS if option.name not in _OF_THE_JOB)
RANGES = (  # the part of a selection that says which ranges of which queues
    *STORE_OPTIONS,
    "topic",
    "subscribe",
    "subscribePattern",
    "assign",
    "includeSystemTopics",
    *(o.name for o in OPTIONS if o.name.startswith(("starting", "ending"))),
    "failOnDataLoss",
)

_F = TypeVar("_F", bound=Callable[..., Any])


class JobCommand(click.Command):
    """A command that names the nearest option where one is not known."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as wrong:
            known = [name for param in self.params for name in (*param.opts, *param.secondary_opts)]
            hint = nearest(wrong.option_name, [name for name in known if name.startswith("--")])
            raise click.UsageError(f"unknown option {wrong.option_name}. {hint}", ctx) from None


def job(name: str) -> Callable[[Callable[..., Any]], click.Command]:
    """The command of a job: STORE, --json, --checksums, --master, and what is decorated."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        for add in (
            click.option("--master", help="Spark's master (default: spark-submit's, else local)."),
            click.option(
                "--checksums", is_flag=True, help="Size and SHA-256 of every file of the store."
            ),
            click.option(
                "--json", "json_file", metavar="FILE", help="Write the report there; - is stdout."
            ),
            click.argument("store", type=click.Path()),
        ):
            function = add(function)
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        return click.command(name, JobCommand, epilog=_EXIT_CODES, context_settings=settings)(
            function
        )

    return decorate


def source_options(names: Sequence[str] = SELECTION) -> Callable[[_F], _F]:
    """Options of the Spark source under their own names: --startingTimestamp."""

    def decorate(function: _F) -> _F:
        for option in reversed(OPTIONS):
            if option.name in names:
                told = f"{option.meaning} (default: {option.default or 'none'})"
                add = click.option(f"--{option.name}", option.name, metavar="TEXT", help=told)
                function = add(function)
        return function

    return decorate


def given_options(given: Mapping[str, Any], names: Sequence[str] = SELECTION) -> dict[str, str]:
    """Those of the source's options that a command line has."""
    return {name: given[name] for name in names if given.get(name) is not None}


def run_job(
    command: click.Command,
    argv: Sequence[str] | None,
    work: Callable[[SparkSession, Mapping[str, Any], Callable[[], bool]], Answer],
    *,
    stoppable: bool = True,
) -> int:
    """Parse, work with Spark, tell. `work` makes its spec of the parsed options. The exit code.

    `stoppable`: the job asks between parts whether it is to stop, so signals end it in order.
    """
    name = command.name or "job"
    keep_freed_memory()
    try:
        with command.make_context(name, list(sys.argv[1:] if argv is None else argv)) as context:
            given = context.params
        spark = session(name, given["master"])
        with asked_to_stop() if stoppable else nullcontext(bool) as should_stop:
            answer = work(spark, given, should_stop)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as wrong:
        wrong.show()
        return EXIT_REFUSED
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except StoreError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except (PySparkException, Py4JError) as error:
        # What an executor met; our own sentence is in it.
        print(f"{name}: {reason_of(error)}", file=sys.stderr)
        return EXIT_REFUSED
    tell(answer, given["json_file"])
    if answer.stopped_by is not None:
        return EXIT_STOPPED
    return EXIT_OK if answer.ok else EXIT_NOT_ALL


def tell(answer: Answer, json_file: str | None) -> None:
    """The tables on stdout, or the JSON there and the tables on stderr."""
    on_stdout = json_file == "-"
    show(answer, Console(stderr=on_stdout))
    if on_stdout:
        print(answer.to_json())
    elif json_file is not None:
        answer.save(json_file)


def session(name: str, master: str | None) -> SparkSession:
    """Spark with this Python; local where nobody says otherwise."""
    # Spark's own choice is the first python3 on PATH, which need not have our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    ship_jobs()
    builder = SparkSession.builder.appName(f"rmqstore {name}")
    if master is not None:
        builder = builder.master(master)
    elif "SPARK_ENV_LOADED" not in os.environ and "PYSPARK_GATEWAY_PORT" not in os.environ:
        builder = builder.master("local[*]")
    quiet: dict[str, bool | float | int | str | None] = {
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    return builder.config(map=quiet).getOrCreate()


def ship_jobs() -> None:
    """Executors have the installed packages, and not this folder: its functions travel whole."""
    cloudpickle.register_pickle_by_value(jobs)  # type: ignore[no-untyped-call]


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Whether SIGINT or SIGTERM has come: the work at hand is finished, and the target closed."""
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda signum, _: came.append(signum)) for number in numbers]
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def size_option(text: str, name: str) -> int:
    """Bytes, or with k, m, g. Raises InvalidArgumentError."""
    from spark_source.options import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise InvalidArgumentError(None, reason=f"{name} {error}", actual=text) from None
