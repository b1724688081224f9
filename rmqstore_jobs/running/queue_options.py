"""--queue and --offsets: the queues of a job, and ranges of their queue offsets."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rmq_store.cli.options import Declared, option, rare_option
from rmq_store.errors import InvalidArgumentError
from rmq_store.format.queues import QueueId
from rmqstore_jobs.running.source_options import word_of
from rmqstore_jobs.running.store_selection import options_of_queues
from spark_source.options.value_parsers import EARLIEST

QUEUE_OPTIONS: Mapping[str, Declared] = {
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


def with_queues(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, with options of the source for --queue and --offsets. Raises InvalidArgumentError."""
    rest = {name: value for name, value in given.items() if name not in ("queues", "offsets")}
    topics = tuple(given["topic"].split(",")) if given["topic"] else ()
    queues, topics = queues_of(given["queues"], topics)
    offsets = offsets_of(given["offsets"])
    refuse_reversed_offsets(offsets)
    options = options_of_queues(queues, offsets)
    refuse_topics_beside(topics, options)
    for name in options:
        if given[name] is not None:
            raise InvalidArgumentError(
                reason=f"{word_of(name)} selects queues or offsets that --queue and --offsets select too",
                advice=f"Give either {word_of(name)}, or --queue and --offsets",
            )
    if options:
        rest |= {**options, "topic": None}
    return rest


def refuse_topics_beside(topics: Collection[str], queues: Collection[object]) -> None:
    """Raise InvalidArgumentError for topics and single queues."""
    if topics and queues:
        raise InvalidArgumentError(
            reason="topics and single queues exclude each other",
            advice="Name every queue, or only topics",
        )


def offsets_of(texts: Sequence[str]) -> dict[QueueId, tuple[int, int]]:
    """The ranges of --offsets. Raises InvalidArgumentError."""
    return dict(_range_in(text) for text in texts)


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


def _range_in(text: str) -> tuple[QueueId, tuple[int, int]]:
    queue, equals, span = text.rpartition("=")
    match = re.fullmatch(r"(-?[0-9]{1,18})\.\.(-?[0-9]{1,18})", span)
    if not equals or match is None:
        raise refused("--offsets TOPIC:ID=FROM..BEFORE", text)
    return queue_in(queue, "--offsets"), (int(match[1]), int(match[2]))


def refuse_reversed_offsets(offsets: Mapping[QueueId, tuple[int, int]]) -> None:
    """Raise InvalidArgumentError for a range of offsets that ends before it begins."""
    for queue, (start, stop) in offsets.items():
        # -1 and -2 are compared only if the order is certain.
        if 0 <= stop < start or (stop == EARLIEST and start != EARLIEST):
            raise InvalidArgumentError(
                reason=f"the offsets of queue {queue.queue_id} of {queue.topic!r} end before they start",
                actual=f"{start}..{stop}",
                advice="In --offsets TOPIC:ID=FROM..BEFORE, FROM must not be after BEFORE; -2 is the "
                "earliest offset, -1 the latest",
            )
