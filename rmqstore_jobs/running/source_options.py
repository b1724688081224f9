"""The options of the Spark source as options of jobs: in the words of the commands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import click

from rmq_store.cli import shell_words
from rmq_store.cli.options import WORDS, Declared, RareOption, joined, spelled
from spark_source.options.definitions import OPTIONS, Option
from spark_source.options.value_parsers import flag, time

_ALL = frozenset(option.name for option in OPTIONS)
_SEVERAL = {"topic": ",", "tags": " || ", "keys": " || "}
"""Options that can be given more than once, with what separates their values in one text."""

_RARE = ("brokerConf", "brokerName")
_TEXTS: Mapping[str, str] = {
    "keys": "Only messages with this word in KEYS, or this UNIQ_KEY, or with one of 'a || b'; repeatable.",
    "subscribePattern": "Topics whose whole name matches a regular expression; system topics only with "
    "--system.",
    "columns": "Columns to read, separated by commas.",
    "failOnDataLoss": "Whether the command fails if selected messages have expired; else it warns, and "
    "takes the remaining ones.",
    "splitBy": "log: partitions are slices of the log, which is read once; queue: each queue stays in one "
    "partition, in order.",
    "minPartitions": "Minimum number of partitions, if there are as many messages (with --split-by queue: "
    "queues).",
    "maxRecordsPerPartition": "Maximum number of queue entries in a partition.",
    "maxBytesPerPartition": "Approximate bytes of messages in a partition; a number, or with k, m, g.",
    "verifyQueue": "Check every queue entry against its record, and compare the whole log with the queues.",
    "mode": "On damage: FAILFAST stops, PERMISSIVE writes a row about it with the column corruptRecord, "
    "DROPMALFORMED leaves the message out and counts it.",
    "maxBodyBytes": "A body that decompresses to more than this is damage.",
    "unwrapBatches": "A row for each message of an inner batch, or one for the stored record.",
    "storageOptions": "For a store such as s3://bucket/store: arguments for its class in pyarrow.fs, as "
    'JSON: {"region": "eu-central-1"}; never shown.',
}
"""What options of the source mean to a command, but for their defaults. It takes the others too, and does not
show them, because it has other words for them."""

_YES_OR_NO = {"true": "yes", "false": "no"}


def word_of(name: str) -> str:
    """The option of jobs for an option of the source: `minPartitions` is --min-partitions."""
    return WORDS[name].words[0] if name in WORDS else spelled(name)


def source_options(names: Sequence[str]) -> dict[str, Declared]:
    """Options of the Spark source, by the source's names for them; their values are texts."""
    return {known.name: _declared(known) for known in OPTIONS if known.name in names}


class SourceOption(RareOption):
    """An option of the source that commands do not have; the page of the source explains it."""


def _declared(known: Option) -> Declared:
    own, text = WORDS.get(known.name), _TEXTS.get(known.name)
    word, kind = word_of(known.name), SourceOption if own is None else click.Option
    how: dict[str, Any] = {"metavar": "TIME" if known.parse is time else "TEXT"}
    if own is not None:
        how = {"metavar": own.settings.get("metavar")}
        text = text or own.settings["help"]
    elif text is not None:
        default = _YES_OR_NO.get(known.default, known.default or "none")
        text = f"{text.removesuffix('.')} (default: {default})."
    if known.name in _SEVERAL:
        how |= {"multiple": True, "callback": joined(_SEVERAL[known.name])}
    if known.parse is flag:
        how = {"is_flag": True, "default": None, "callback": _flag_text}
        word = word if own is not None else f"{word}/--no-{word.removeprefix('--')}"
    kind = RareOption if known.name in _RARE else kind
    return Declared(kind, [word], help=text, hidden=text is None, **how)


def _flag_text(_: click.Context, __: click.Parameter, given: bool | None) -> str | None:
    """A flag as the source has it; None if it is not given."""
    return None if given is None else str(given).lower()


def advice_in_shell_words(advice: str, command: click.Command | None = None) -> str:
    """What an error or a warning of a job advises, in the words of the shell for its `command`."""
    return re.sub(
        r"(?<![\w-])[a-z]+(?:[A-Z][a-z]+)+\b",  # an option of the source of two words or more
        lambda found: word_of(found[0]) if found[0] in _ALL else found[0],
        shell_words.in_shell_words(advice, command),
    )
