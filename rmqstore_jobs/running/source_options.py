"""The options of the Spark source as options of jobs, in the words of the commands; and --queue and
--offsets, which stand for several of them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import click

from rmq_store.cli.command import in_shell_words
from rmq_store.cli.options import (
    WORDS,
    DeclaredOption,
    OptionOfHelpAll,
    joined_values,
    option,
    rare_option,
    shell_option_name,
)
from rmq_store.errors import InvalidArgumentError
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.reading.store_reader import PinnedStore
from rmq_store.scan.option_values import flag
from rmq_store.scan.options import OPTIONS, Option
from rmq_store.scan.parse_options import parse_options
from rmq_store.scan.scan import pinned_scan
from rmq_store.scan.tasks import StoreScan
from rmq_store.search.selection import EARLIEST
from rmq_store.snapshot.ranges import LogSlice, parts_in_log_slice
from rmq_store.text.times import parse_time
from rmqstore_jobs.running.failures import refuse_if


def scan_of(store: str, options: Mapping[str, str]) -> StoreScan:
    """The scan of what the source's options select in a store as it is now. Raises StoreError.

    Jobs take queues as they are, with every message of a compaction topic.
    """
    return pinned_scan(parse_options({"path": store, **options, "compacted": "false"}))


def pinned_store(store: str, options: Mapping[str, str]) -> PinnedStore:
    """A store as it is now, with all queues, including system queues. Raises StoreError."""
    # A table is about the whole store. A scan of messages would pin only the selected queues.
    return scan_of(store, {**options, "table": "queues"}).store


def log_of_store(store: str, options: Mapping[str, str]) -> PinnedStore:
    """A store with only its log; its queues are not read. Raises StoreError."""
    return scan_of(store, {**options, "source": "commitlog"}).store


def pieces_in(scan: StoreScan, wave: LogSlice) -> list[QueueSlice]:
    """The parts of the ranges of a scan in a range of the log."""
    with scan.store.open() as store:
        return list(parts_in_log_slice(scan.ranges, wave, store.view.offset_at_log))


def range_options(ranges: Sequence[QueueSlice]) -> dict[str, str]:
    """The options that select `ranges`: at least one range, and at most one per queue."""
    return options_of_queues((), {part.queue: (part.start, part.stop) for part in ranges})


def options_of_queues(
    queues: Iterable[QueueId], offsets: Mapping[QueueId, tuple[int, int]]
) -> dict[str, str]:
    """The options of the source that select single queues, and those with ranges of offsets."""
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    stops: dict[str, dict[str, int]] = {}
    for topic, queue_id in dict.fromkeys((*queues, *offsets)):
        assigned.setdefault(topic, []).append(queue_id)
    for (topic, queue_id), (start, stop) in offsets.items():
        starts.setdefault(topic, {})[str(queue_id)] = start
        stops.setdefault(topic, {})[str(queue_id)] = stop
    found = {"assign": assigned, "startingOffsets": starts, "endingOffsets": stops}
    return {name: json.dumps(by_topic) for name, by_topic in found.items() if by_topic}


_ALL = frozenset(option.name for option in OPTIONS)
_SEVERAL = {"topic": ",", "tags": " || ", "keys": " || "}
"""Options that can be given more than once, with what separates their values in one text."""

_RARE = ("brokerConf", "brokerName")
_EXPLAINED = (
    *("subscribePattern", "columns", "failOnDataLoss", "splitBy", "minPartitions", "verifyQueue"),
    *("maxRecordsPerPartition", "maxBytesPerPartition", "mode", "maxBodyBytes", "unwrapBatches"),
    "storageOptions",
)
"""Options of the source alone that a help explains. A command takes the others too, and does not show them,
because it has other words for them."""

_YES_OR_NO = {"true": "yes", "false": "no"}


def word_of(name: str) -> str:
    """The option of jobs for an option of the source: `minPartitions` is --min-partitions."""
    return WORDS[name].words[0] if name in WORDS else shell_option_name(name)


def source_options(names: Sequence[str]) -> dict[str, DeclaredOption]:
    """Options of the Spark source, by the source's names for them; their values are texts."""
    return {known.name: _declared(known) for known in OPTIONS if known.name in names}


class SourceOption(OptionOfHelpAll):
    """An option of the source that commands do not have; the page of the source explains it."""


def _declared(option: Option) -> DeclaredOption:
    own, text = WORDS.get(option.name), None
    word, kind = word_of(option.name), SourceOption if own is None else click.Option
    how: dict[str, Any] = {"metavar": "TIME" if option.parse is parse_time else "TEXT"}
    if own is not None:
        how = {"metavar": own.settings.get("metavar")}
        text = own.settings["help"]
    elif option.name in _EXPLAINED:
        default = _YES_OR_NO.get(option.default, option.default)
        text = f"{_meaning(option)} (default: {default})."
    if option.name in _SEVERAL:
        how |= {"multiple": True, "callback": joined_values(_SEVERAL[option.name])}
    if option.parse is flag:
        how = {"is_flag": True, "default": None}
        how["callback"] = lambda _, __, given: None if given is None else str(given).lower()
        word = word if own is not None else f"{word}/--no-{word.removeprefix('--')}"
    kind = OptionOfHelpAll if option.name in _RARE else kind
    return DeclaredOption(kind, [word], help=text, hidden=text is None, **how)


def _meaning(option: Option) -> str:
    """What an option of the source means, in the words of the shell; not what a command cannot ask for."""
    clauses = option.meaning.replace("`", "").split("; ")
    of_commands = (text for text in clauses if not text.startswith(("table=", "not with source=")))
    text = advice_in_shell_words("; ".join(of_commands)).replace("the query", "the command")
    text = re.sub(r"(?<=--)([a-z-]+)=", r"\1 ", text)
    return text if option.meaning.startswith("`") else text[0].upper() + text[1:]


def advice_in_shell_words(advice: str, command: click.Command | None = None) -> str:
    """What an error or a warning of a job advises, in the words of the shell for its `command`."""
    return re.sub(
        r"(?<![\w-])[a-z]+(?:[A-Z][a-z]+)+\b",  # an option of the source of two words or more
        lambda name: word_of(name[0]) if name[0] in _ALL else name[0],
        in_shell_words(advice, command),
    )


# --- queues, and ranges of their offsets ------------------------------------------------------------


QUEUE_OPTIONS: Mapping[str, DeclaredOption] = {
    "queues": option(
        "--queue",
        metavar="[TOPIC:]ID",
        multiple=True,
        help="Only this queue; repeatable. ID alone: of each --topic.",
    ),
    "offsets": rare_option(
        "--offsets",
        metavar="TOPIC:ID=FROM..BEFORE",
        multiple=True,
        help="Only these queue offsets of one queue; -2 is the earliest, -1 the latest; "
        "repeatable.",
    ),
}


def with_queues(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, with options of the source for --queue and --offsets. Raises InvalidArgumentError."""
    others = {name: value for name, value in arguments.items() if name not in ("queues", "offsets")}
    topics = tuple(arguments["topic"].split(",")) if arguments["topic"] else ()
    queues, topics = queues_of(arguments["queues"], topics)
    offsets = offsets_of(arguments["offsets"])
    refuse_reversed_offsets(offsets)
    options = options_of_queues(queues, offsets)
    refuse_topics_beside(topics, options)
    for name in options:
        word = word_of(name)
        refuse_if(
            arguments[name] is not None,
            f"{word} selects queues or offsets that --queue and --offsets select too",
            f"Give either {word}, or --queue and --offsets",
        )
    return others | options | ({"topic": None} if options else {})


def refuse_topics_beside(topics: Collection[str], queues: Collection[object]) -> None:
    """Raise InvalidArgumentError for topics and single queues."""
    advice = "Name every queue, or only topics"
    refuse_if(topics and queues, "topics and single queues exclude each other", advice)


def offsets_of(texts: Sequence[str]) -> dict[QueueId, tuple[int, int]]:
    """The ranges of --offsets. Raises InvalidArgumentError."""
    offsets: dict[QueueId, tuple[int, int]] = {}
    for text in texts:
        match = re.fullmatch(r"(.*)=(-?[0-9]{1,18})\.\.(-?[0-9]{1,18})", text, re.DOTALL)
        if match is None:
            raise refused("--offsets TOPIC:ID=FROM..BEFORE", text)
        offsets[queue_in(match[1], "--offsets")] = int(match[2]), int(match[3])
    return offsets


def refused(form: str, text: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        reason=f"cannot be read as {form}", actual=repr(text), advice="--help shows the forms"
    )


def is_queue_id(text: str) -> bool:
    return re.fullmatch("[0-9]{1,10}", text) is not None and int(text) < 2**31


def queues_of(
    texts: Sequence[str], topics: tuple[str, ...]
) -> tuple[tuple[QueueId, ...], tuple[str, ...]]:
    """The queues of --queue, and the topics of --topic that are not meant by them."""
    bare = [text for text in texts if is_queue_id(text)]
    if bare and not topics:
        raise InvalidArgumentError(
            reason="--queue ID needs --topic",
            actual=repr(bare[0]),
            advice="Give --topic, or --queue TOPIC:ID",
        )
    named = (queue_in(text, "--queue") for text in texts if text not in bare)
    of_topics = (QueueId(topic, int(text)) for topic in topics for text in bare)
    return (*named, *of_topics), () if bare else topics


def queue_in(text: str, option: str) -> QueueId:
    topic, colon, number = text.rpartition(":")
    if not colon or not topic or not is_queue_id(number):
        raise refused(f"{option} TOPIC:ID", text)
    return QueueId(topic, int(number))


def refuse_reversed_offsets(offsets: Mapping[QueueId, tuple[int, int]]) -> None:
    """Raise InvalidArgumentError for a range of offsets that ends before it begins."""
    for queue, (start, stop) in offsets.items():
        # -1 and -2 are compared only if the order is certain.
        refuse_if(
            0 <= stop < start or (stop == EARLIEST and start != EARLIEST),
            f"the offsets of queue {queue.queue_id} of {queue.topic!r} end before they start",
            "In --offsets TOPIC:ID=FROM..BEFORE, FROM must not be after BEFORE; -2 is the earliest "
            "offset, -1 the latest",
            found=f"{start}..{stop}",
        )
