"""Print messages: what `cat`, `find` and `tail` share."""

from __future__ import annotations

from dataclasses import dataclass

import click

from rmq_store.cli.options import JSON, SKIP_DAMAGED, flag, option, options_as_one
from rmq_store.cli.output import problem
from rmq_store.errors import CorruptQueueError, InvalidArgumentError, StoreError
from rmq_store.text.sizes import HiddenMessages

# Those of rmq_store.text.bodies, which is slow to load, and none.
FORMS = ("text", "json", "base64", "hex", "none")
NONE = "none"
_BODIES = ("body", "rawBody")
TEXT_COLUMNS = "topic,queueId,queueOffset,storeTimestamp,tags,keys,body"

RAW = flag("--raw", help="Print an inner batch as one record, not its messages.")
FULL = flag("--full", help="Do not cut values to the terminal's width.")
BODY = option(
    "--body",
    type=click.Choice(FORMS),
    help="Form of bodies. text: other bytes as \\xff; json: on one line. Default: UTF-8 as text, else "
    "base64.",
)


def _charset(name: str) -> str:
    from rmq_store.text.bodies import charset_named

    try:
        return charset_named(name)
    except InvalidArgumentError as error:
        raise click.BadParameter(f"{error.reason}. {error.advice}") from None


CHARSET = option(
    "--charset",
    type=_charset,
    metavar="NAME",
    help="Charset of bodies that are text, such as GBK. Default: UTF-8.",
)


@dataclass(frozen=True, slots=True)
class MessageForm:
    """How messages are printed: JSON lines, CSV, rows of a table on a terminal, or tab-separated text.

    `full`: rows of a table are not cut. `body`: the form of bodies, by default what suits the output.
    `charset`: that of bodies, by default UTF-8. `header`: text begins with the names of the columns,
    also if there is no message. `is_listed`: on a terminal each value has a line of its own.
    """

    full: bool
    body: str | None
    as_json: bool
    as_csv: bool = False
    header: bool = False
    columns: str | None = None
    charset: str | None = None
    is_listed: bool = False

    def names(self) -> tuple[str, ...] | None:
        """The columns to print; None means all default columns. Raises for an unknown column, and for
        --body or --header with --json."""
        if self.as_json and self.body is not None:
            raise click.UsageError("--body is for text: --json has the whole body; see --columns")
        if self.as_json and self.header:
            raise click.UsageError("--header is for text: --json names the columns in each line")
        if self.columns is None and self.as_json:
            return None
        from rmq_store.arrow.column_definitions import column_names

        given = TEXT_COLUMNS if self.columns is None else self.columns
        names = column_names([name.strip() for name in given.split(",")])
        kept = tuple(name for name in names if self.body != NONE or name not in _BODIES)
        if not kept:
            raise click.UsageError("--body none leaves no column to print")
        return kept


MESSAGE_FORM = options_as_one(
    MessageForm,
    header=flag("--header", help="Print the names of the columns first."),
    columns=option(
        "--columns",
        metavar="NAMES",
        help=f"Columns, separated by commas. Default: {TEXT_COLUMNS}; with --json all.",
    ),
    full=FULL,
    body=BODY,
    charset=CHARSET,
    as_json=JSON,
)


class SkippedDamage:
    """Counts what is left out because of damage, and reports the first error.

    Without `skips`, damage ends the command. As a context it then says how to leave it out.
    """

    def __init__(self, skips: bool) -> None:
        self.skips = skips
        self._hidden = HiddenMessages()
        self._seen: set[tuple[str | None, int | None]] = set()

    @property
    def count(self) -> int:
        """How many errors there were."""
        return self._hidden.errors

    def __enter__(self) -> SkippedDamage:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not self.skips and isinstance(error, StoreError) and error.entry is not None:
            in_queue = isinstance(error, CorruptQueueError) and error.entry.messages != 1
            what = (
                "messages that a queue lacks; --skip-damaged gives the others"
                if in_queue
                else "a damaged message; --skip-damaged leaves it out"
            )
            problem(f"stopped at {what}")

    @property
    def handler(self) -> SkippedDamage | None:
        """What takes the errors; None where they end the command."""
        return self if self.skips else None

    def __call__(self, error: StoreError) -> None:
        """Count the errors of one place as one, for some tables read a queue twice; print the first."""
        if (error.path, error.offset) in self._seen:
            return
        self._seen.add((error.path, error.offset))
        if not self.count:
            problem(f"left out: {error}")
        self._hidden.add(error)

    def conclude(self) -> bool:
        """Whether there were errors; print how many messages were not read after several."""
        if self.count > 1:
            problem(f"{self._hidden} could not be read; see `verify`")
        return self.count > 0


DAMAGE = options_as_one(SkippedDamage, skips=SKIP_DAMAGED)
