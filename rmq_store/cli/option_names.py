"""The words of options that commands and jobs share, and what they mean."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from rmq_store.errors import InvalidArgumentError, nearest
from rmq_store.escaping import printable
from rmq_store.text.times import TIME_FORMS

SINCE = f"Only messages stored at TIME or later: {TIME_FORMS}."
UNTIL = "Only messages stored before TIME."
TAG = "Only messages with this tag, or with one of 'a || b'; repeatable."
TOPIC = "Only this topic."
TOPICS = "Only this topic; repeatable."
GROUP = "Only this consumer group."
GROUPS = "Only this consumer group; repeatable."
BROKER_CONF = "The broker's configuration file."
BROKER_NAME = "The broker's name (default: the one in --broker-conf, else the folder's name)."
KEYS = "Only messages with this word in KEYS, or this UNIQ_KEY; repeatable."
RELEASE = "Write files like this broker release (default: the newest)."
SYSTEM = "Include system topics."
HISTORY = (
    "Of a compaction topic every message that has not expired, not only the last one of each key."
)
LOG = "Copy the log, or hard-link its full files and copy the last; links need one file system."

WORDS: Mapping[str, tuple[str, str]] = {
    "topic": ("--topic", TOPICS),
    "tags": ("--tag", TAG),
    "keys": (
        "--key",
        "Only messages with this word in KEYS, or this UNIQ_KEY, or with one of 'a || b'; repeatable.",
    ),
    "startingTimestamp": ("--since", SINCE),
    "endingTimestamp": ("--until", UNTIL),
    "brokerConf": ("--broker-conf", BROKER_CONF),
    "brokerName": ("--broker-name", BROKER_NAME),
    "includeSystemTopics": ("--system", SYSTEM),
}
"""Options of the Spark source that commands and jobs call otherwise: name -> word, meaning."""

_ALONE = {
    "subscribe": "--topic",
    "startingOffsets": "--offset",
    "compacted": "--history",
    "unwrapBatches": "--raw",
    "mode": "--skip-damaged",
}
"""Those that jobs have by their own names, and commands by others: name -> word."""

_BY_MEANING = {
    **dict.fromkeys(("--config", "--conf", "--broker-config", "--configuration"), "--broker-conf"),
    **dict.fromkeys(("--from", "--start", "--begin", "--after"), "--since"),
    **dict.fromkeys(("--end", "--before"), "--until"),
    **dict.fromkeys(("--consumer", "--consumer-group"), "--group"),
    **dict.fromkeys(("--max", "--count", "--head"), "--limit"),
}
"""What other tools call an option -> our word."""


def spelled(name: str) -> str:
    """The name of an option of the source as a shell has such names."""
    return "--" + re.sub("[A-Z]", lambda found: f"-{found[0].lower()}", name)


_OF_SOURCE = {
    spelled(name): word
    for name, word in (*((name, word) for name, (word, _) in WORDS.items()), *_ALONE.items())
}

_OFTEN_LEFT_OUT = ("target", "to_store", "topic", "topics", "keys", "group", "groups", "report")


def _show_all(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        ctx.meta[ALL_OPTIONS] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


ALL_OPTIONS = f"{__name__}.all"  # in the meta of a context whose help lists all options


def help_all(*, hidden: bool) -> click.Option:
    """The option --help-all. `hidden`: --help lists as much."""
    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_all,
        hidden=hidden,
        help="Show all options, and exit.",
    )


def show_refusal(wrong: click.ClickException) -> None:
    """Print an error of click on stderr; what is wrong with an option has the code of an
    InvalidArgumentError."""
    shows_help = isinstance(wrong, getattr(click.exceptions, "NoArgsIsHelpError", ()))
    if isinstance(wrong, click.UsageError) and not shows_help:
        said = f"[{InvalidArgumentError.code}] {wrong.format_message()}"
        wrong = click.UsageError(said, wrong.ctx)
    wrong.show()


class OnceCommand(click.Command):
    """A command that refuses an option that is given twice and counts once: click takes the last.

    For an unknown one it names its word for one of the Spark source, or the nearest option.
    """

    @property
    def has_rare_options(self) -> bool:
        """Whether --help-all lists more than --help does."""
        return False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The parameters, with --help-all, which scripts and habits give to any command."""
        return [*super().get_params(ctx), help_all(hidden=not self.has_rare_options)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words of a command line. Raises click's errors."""
        try:
            return self._parsed(ctx, args)
        except click.NoSuchOption as wrong:
            options = (one for one in self.params if not getattr(one, "hidden", False))
            shown = {name for one in options for name in (*one.opts, *one.secondary_opts)}
            asked = spelled(wrong.option_name.lstrip("-"))
            word = _OF_SOURCE.get(asked) or _BY_MEANING.get(asked, "")
            given = word if word in shown else wrong.option_name
            hint = nearest(given, [name for name in shown if name.startswith("--")])
            name = printable(wrong.option_name)
            raise click.UsageError(f"unknown option {name}. {hint}", ctx) from None

    def _parsed(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            _, left, given = self.make_parser(ctx).parse_args(list(args))
            if left:
                raise click.UsageError(self._about_words(left), ctx)
            for param, count in Counter(given).items():
                if isinstance(param, click.Option) and count > 1 and _counts_once(param):
                    raise click.UsageError(f"{param.opts[0]} is given {count} times", ctx)
        return super().parse_args(ctx, args)

    def _about_words(self, words: Sequence[str]) -> str:
        """What to say of words that belong to nothing: often a topic, a key or a file."""
        known = {param.name: param.opts[0] for param in self.params}
        names = [known[name] for name in _OFTEN_LEFT_OUT if name in known]
        hint = ", or ".join(f"{name} {words[0]}" for name in names)
        said = f"{', '.join(map(repr, words))} belong{'s' * (len(words) == 1)} to no option"
        if words[0].lower() in ("true", "false"):
            return f"{said}. A flag takes no value; some have the form --no-... too, see --help"
        return said + (f". Did you mean {hint}?" if hint else "")


def _counts_once(option: click.Option) -> bool:
    return not (option.multiple or option.is_flag or option.count)


def joined(separator: str) -> Callable[[click.Context, click.Parameter, Any], str | None]:
    """A callback for a repeatable option: its values as one text, None if it is not given."""

    def join(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> str | None:
        return separator.join(values) if values else None

    return join
