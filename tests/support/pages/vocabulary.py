"""The table of docs/vocabulary.md: each word, what it means, and who has it.

`python -m tests.support.pages.vocabulary` writes the table again. A word that two commands or jobs
have needs a row of MEANINGS.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import click

from rmqstore_jobs.running.source_options import SourceOption
from tests.support.pages.option_pages import DOCS, pages

PAGE = DOCS / "vocabulary.md"
TABLE = re.compile(r"^\| word \|.*?(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)
_HEADER = "| word | meaning | commands | option of the Spark source |\n|---|---|---|---|"


class Meaning(NamedTuple):
    """What a word means, and the option of the Spark source (or of its writes) that says the same."""

    text: str
    of_source: str = ""


MEANINGS = {
    "--topic": Meaning(
        "messages of this topic; a retry and a dead letter count for the topic they were first sent to",
        "topic",
    ),
    "--queue": Meaning("this queue of the topic", "assign"),
    "--offsets": Meaning("these queue offsets of a queue", "startingOffsets"),
    "--tag": Meaning("messages with this tag, or with one of `a || b`", "tags"),
    "--key": Meaning("messages with this word in KEYS, or this UNIQ_KEY", "keys"),
    "--id": Meaning("the message with this offsetMsgId or UNIQ_KEY"),
    "--group": Meaning("this consumer group; for `traces` also a producer group"),
    "--since": Meaning("messages stored at this time or later", "startingTimestamp"),
    "--until": Meaning("messages stored before this time", "endingTimestamp"),
    "--zone": Meaning("days and hours of this time zone; UTC without it"),
    "--state": Meaning("messages or transactions in this state"),
    "--system": Meaning("include system topics", "includeSystemTopics"),
    "--limit": Meaning("stop after so many rows"),
    "--top": Meaning("only the largest or newest, so many"),
    "--by": Meaning("what a row of the answer is about"),
    "--max-lag": Meaning("the most messages that a group may be behind in a topic"),
    "--columns": Meaning("these columns, separated by commas", "columns"),
    "--header": Meaning("names of the columns first, in a pipe too"),
    "--full": Meaning("do not cut values to the terminal's width"),
    "--body": Meaning("the form of bodies: text, json, base64, hex or none"),
    "--charset": Meaning("the charset of bodies that are text"),
    "--skip-damaged": Meaning("leave out damaged messages, and report them", "mode=DROPMALFORMED"),
    "--raw": Meaning("records as they are stored, also inner batches", "unwrapBatches=false"),
    "--history": Meaning(
        "every message of a compaction topic that has not expired", "compacted=false"
    ),
    "--verify": Meaning("check the whole log, or the new store"),
    "--verify-queue": Meaning("check every queue entry against its record", "verifyQueue"),
    "--explain": Meaning("show what is read, not the rows"),
    "--json": Meaning("JSON instead of tables: one object a line"),
    "--to": Meaning("the new store, folder or file that is written", "path"),
    "--append": Meaning("add to a target store that exists"),
    "--dry-run": Meaning("report what would be written or sent; write nothing"),
    "--to-broker": Meaning("the proxy of a running broker that gets the messages"),
    "--failed": Meaning("the folder for messages that the broker refused"),
    "--tls": Meaning("connect to the proxy with TLS"),
    "--tls-ca": Meaning("certificates that sign the proxy's own"),
    "--log": Meaning("copy the log, or link its full files"),
    "--release": Meaning("the broker release that the written files fit", "release"),
    "--apply": Meaning("change STORE; without it the command shows what it would change"),
    "--method": Meaning("how to recover: strict, or as the broker does"),
    "--broker-conf": Meaning("the broker's configuration file", "brokerConf"),
    "--broker-name": Meaning("the broker's name", "brokerName"),
    "--engine": Meaning("work in this process, or on Spark"),
    "--master": Meaning("Spark's master"),
    "--report": Meaning("write the report as JSON to this file too"),
    "--checksums": Meaning("report size and SHA-256 of every file of the store"),
    "--wave-bytes": Meaning("bytes per wave: what is written or sent at once"),
}


class Use(NamedTuple):
    """An option of a command."""

    front: str
    option: click.Option


def uses() -> dict[str, list[Use]]:
    """Who has each option, by its first name; without options that only the Spark source explains."""
    found: dict[str, list[Use]] = defaultdict(list)
    for page, _, command in pages():
        for option in command.params:
            if not isinstance(option, click.Option) or option.hidden:
                continue
            word = next(name for name in option.opts if name.startswith("--"))
            if word in MEANINGS or not isinstance(option, SourceOption):
                found[word].append(Use(page.stem, option))
    return found


def rows() -> Iterator[str]:
    """The lines of the table. Raises KeyError for a shared word without a meaning."""
    found = uses()
    every = {use.front for use in found["--json"]}
    shared = {word for word, its in found.items() if len(its) > 1}
    if missing := shared - set(MEANINGS):
        raise KeyError(f"{sorted(missing)}: words without a meaning in MEANINGS")
    for word, meaning in MEANINGS.items():
        fronts = _names({use.front for use in found[word]}, every)
        source = f"`{meaning.of_source}`" if meaning.of_source else ""
        cells = (f"`{word}`", meaning.text, fronts, source)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _names(fronts: set[str], every: set[str]) -> str:
    return "all" if fronts == every else ", ".join(sorted(fronts))


def table() -> str:
    """The table, without a line end."""
    return "\n".join((_HEADER, *rows()))


if __name__ == "__main__":
    text = PAGE.read_text("utf-8")
    PAGE.write_text(TABLE.sub(lambda _: table(), text, count=1), "utf-8")
