"""What a command is: its options are the defaults of a function's parameters, each declared once.

@command
def lag(at: StoreArgs = STORE, topics: tuple[str, ...] = TOPICS) -> bool: ...

Its errors and warnings advise in the words of the shell: the library names its own and Spark's options.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from inspect import cleandoc, signature
from textwrap import dedent
from typing import Any

import click

from rmq_store.cli.options import MEANT, OptionOfHelpAll, click_params, shell_option_name
from rmq_store.errors import (
    AccessError,
    InvalidArgumentError,
    StoreError,
    nearest,
    printable,
    spoken_as,
)

_OF_ANOTHER = "rmqstore cat --skip-damaged leaves it out"
_SHELL = {
    "Read with source=commitlog, or rebuild": "Rebuild",
    "Read with source=commitlog to get the message, or rebuild": "Rebuild",
    "Read with source=commitlog to get the message": "rmqstore salvage copies the message",
    "Read with source=commitlog, which numbers messages as their records say": "rmqstore verify compares "
    "all entries with their records",
    "Read them with source=commitlog, or copy": "Copy",
    ", or read the log itself with source=commitlog": "",
    ", or read the log itself (source=commitlog in Spark, queues=False in Python)": "",
    "the log can be read (source=commitlog in Spark, queues=False in Python), and ": "",
    ", and source=commitlog reads them": "",
    "source=commitlog reads them": "rmqstore salvage copies them into a new store",
    "source=commitlog reads what the log has of it, readStream waits for its first message": "rmqstore "
    "rebuild lists in a new store what the log has of it",
    "source=commitlog in Spark, compacted=False in Python or rmqstore find": "rmqstore find",
    "source=commitlog and compacted=False have the messages": "rmqstore find has the messages",
    "compacted=False (Spark: compacted=false, cat and sql: --history)": "--history of cat and sql",
    "Spark with source=commitlog and mode=PERMISSIVE, MessageStore.open(path, queues=False)"
    ".read_log(), rmqstore salvage": "rmqstore salvage",
    "Read with on_damage to skip it": _OF_ANOTHER,  # or what `_OWN` has
    "Read with verifyQueue to check the entries against their records": "rmqstore verify compares all "
    "entries with their records",
    "Read with unwrapBatches=false and rawBody to get the stored bytes": "--raw --columns rawBody gives "
    "the stored bytes",
    "Read with smaller batches: batch_bytes and batch_rows limit them": "Print fewer columns",
    ", or let a stream continue with what is left with failOnDataLoss=false": "",
    ", or let a stream continue at the end of the log with failOnDataLoss=false": "",
    "or set failOnDataLoss=false": "or give --no-fail-on-data-loss",
    "failOnDataLoss=false reads": "--no-fail-on-data-loss reads",
    ", or the option brokerConf": "",
    ", or with option storageOptions": "",
    ", or append_to for an existing store": "",
    " on the driver": "",
}
_PHRASE = re.compile("|".join(map(re.escape, _SHELL)))


_OWN = {
    "--skip-damaged": "--skip-damaged leaves it out",
    "--mode": "--mode DROPMALFORMED leaves it out",
}
_ON_LOSS = "--no-fail-on-data-loss"
_ABOUT_LOSS = re.compile(rf"(?:; |, or give ){_ON_LOSS}[^;.]*")


def in_shell_words(text: str, command: click.Command | None = None) -> str:
    """A text of an error or a warning, with what the shell has in place of options of the library.

    Where the `command` that runs has an option itself, that is advised.
    """
    text = _PHRASE.sub(lambda found: _SHELL[found[0]], text)
    params = () if command is None else command.params
    options = {word for param in params for word in (*param.opts, *param.secondary_opts)}
    own = next((words for option, words in _OWN.items() if option in options), _OF_ANOTHER)
    return (text if _ON_LOSS in options else _ABOUT_LOSS.sub("", text)).replace(_OF_ANOTHER, own)


EXIT_FINDINGS = 1  # it found a problem, or found nothing
EXIT_FAILED = 2  # a wrong option, no store, or damage that prevents it
EXIT_INTERRUPTED = 130  # ctrl-C, as shells report it

_OFTEN_LEFT_OUT = ("target", "to_store", "topic", "topics", "keys", "group", "groups", "report")
_ALL_OPTIONS = f"{__name__}.all"  # in the meta of a context whose help lists all options


def command(function: Callable[..., bool | None]) -> Command:
    """The command of a function whose parameters have options as defaults, by the function's name.

    Its docstring is the help. The function returns whether it found a problem: that is the exit code. Errors
    and warnings of its work are in the words of the shell, and advise options that the command has.
    """
    parameters = signature(function).parameters
    options = {name: parameter.default for name, parameter in parameters.items()}

    def run(**given: Any) -> int:
        with spoken_as(partial(in_shell_words, command=own)):
            values = {name: declared.value(name, given) for name, declared in options.items()}
            return EXIT_FINDINGS if function(**values) else 0

    own = Command(
        function.__name__, callback=run, params=click_params(options), help=function.__doc__
    )
    return own


class Command(click.Command):
    """A command that refuses an option that is given twice and counts once: click takes the last.

    For an unknown one it names its word for one of the Spark source, or the nearest option. The help may end
    with a part "Examples:": command lines, which stay lines, and before some a line "# what it is for".
    """

    def __init__(self, name: str, *, help: str | None, **settings: Any) -> None:
        about, _, examples = cleandoc(help or "").partition("\n\nExamples:\n")
        super().__init__(name, help=about, **settings)
        self.examples = dedent(examples).splitlines()

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The parameters, with --help-all, which scripts and habits give to any command."""
        help_all = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            hidden=not any(isinstance(param, OptionOfHelpAll) for param in self.params),
            help="Show all options, and exit.",
        )
        return [*super().get_params(ctx), help_all]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options, without those that few need; with --help-all all of them."""
        shown = (
            param
            for param in self.get_params(ctx)
            if isinstance(param, click.Option)
            and (ctx.meta.get(_ALL_OPTIONS) or not isinstance(param, OptionOfHelpAll))
        )
        rows = [row for row in (param.get_help_record(ctx) for param in shown) if row is not None]
        with formatter.section("Options"):
            formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples as they are, and what click has below the options."""
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")
        super().format_epilog(ctx, formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words of a command line. Raises click's errors."""
        try:
            if not ctx.resilient_parsing:
                self._refuse_words(ctx, args)
            return super().parse_args(ctx, args)
        except click.NoSuchOption as wrong:
            options = (param for param in self.params if not getattr(param, "hidden", False))
            shown = {name for param in options for name in (*param.opts, *param.secondary_opts)}
            word = MEANT.get(shell_option_name(wrong.option_name.lstrip("-")))
            given = word if word in shown else wrong.option_name
            hint = nearest(given, [name for name in shown if name.startswith("--")])
            name = printable(wrong.option_name)
            raise click.UsageError(f"unknown option {name}. {hint}", ctx) from None

    def _refuse_words(self, ctx: click.Context, args: list[str]) -> None:
        """Raise for words that belong to nothing, and for an option that is given twice and counts once."""
        _, left, params = self.make_parser(ctx).parse_args(list(args))
        if left:
            raise click.UsageError(self._about_words(left), ctx)
        for param, count in Counter(params).items():
            once = isinstance(param, click.Option) and not (
                param.multiple or param.is_flag or param.count
            )
            if once and count > 1:
                raise click.UsageError(f"{param.opts[0]} is given {count} times", ctx)

    def _about_words(self, words: Sequence[str]) -> str:
        """What to say of words that belong to nothing: often a topic, a key or a file."""
        known = {param.name: param.opts[0] for param in self.params}
        names = [known[name] for name in _OFTEN_LEFT_OUT if name in known]
        hint = ", or ".join(f"{name} {words[0]}" for name in names)
        said = f"{', '.join(map(repr, words))} belong{'s' * (len(words) == 1)} to no option"
        if words[0].lower() in ("true", "false"):
            return f"{said}. A flag takes no value; some have the form --no-... too, see --help"
        return said + (f". Did you mean {hint}?" if hint else "")


def _show_all(ctx: click.Context, _: click.Parameter, given: bool) -> None:
    if given and not ctx.resilient_parsing:
        ctx.meta[_ALL_OPTIONS] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


class EngineFailedError(Exception):
    """Another engine failed, or the work on it. As a text: our own error if there is one."""


def exit_code_of(name: str, run: Callable[[], Any]) -> int:
    """The exit code of what runs as `name`: its own, or that of the error that ends it, which is printed."""
    try:
        code = run()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except click.ClickException as wrong:
        shows_help = isinstance(wrong, getattr(click.exceptions, "NoArgsIsHelpError", ()))
        if isinstance(wrong, click.UsageError) and not shows_help:
            said = f"[{InvalidArgumentError.code}] {wrong.format_message()}"
            wrong = click.UsageError(said, wrong.ctx)
        wrong.show()
        return wrong.exit_code
    except (StoreError, EngineFailedError) as error:
        click.echo(f"{name}: {error}", err=True)
    except OSError as error:
        # No code expected this error here, so at least name the file.
        path = None if error.filename is None else str(error.filename)
        advice = "Check the permissions, the disk and the mount"
        refusal = AccessError(path, reason=error.strerror or str(error), advice=advice)
        click.echo(f"{name}: {refusal}", err=True)
    except Exception:  # Python would end with 1, as a command that has done its work
        traceback.print_exc()
        click.echo(f"{name}: a fault of rmqstore: please report it, with these lines", err=True)
    return EXIT_FAILED
