"""rmqstore trace."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rmq_store.cli.command import command
from rmq_store.cli.messages import where_it_was
from rmq_store.cli.options import STORE, TOPIC, StoreArgs, argument, word
from rmq_store.cli.output import OUTPUT, Output, print_json, problem, say
from rmq_store.text.progress import Progress
from rmq_store.text.sizes import counted
from rmq_store.text.times import shown_time

if TYPE_CHECKING:
    from rmq_store.search.message_history import Life

_MOST_LISTED = 10  # unreadable places that are listed one by one


@command
def trace(
    at: StoreArgs = STORE,
    key: str = argument(type=word),
    topic: str | None = TOPIC.but(help="Only messages that were sent to this topic."),
    out: Output = OUTPUT,
) -> bool:
    """Show the history of the messages with a KEY (a word of KEYS, a UNIQ_KEY or an offsetMsgId):
    stored, delayed, retried, dead, prepared, committed or rolled back. Exit code 1 if there are
    none, or if damaged records were left out."""
    from rmq_store.questions.trace import trace as lives_of
    from rmq_store.search.message_history import once
    from rmq_store.search.queue_selection import require_topic

    with at.open() as opened:
        if topic is not None:
            require_topic(opened, topic)
        with Progress("trace") as progress:
            lives = lives_of(opened, key, topic, progress)
        gone = "" if lives else where_it_was(opened, key)
    for life in lives:
        _print_life(life, out)
    damage = once(*(error for life in lives for error in life.damage))
    for error in damage[:_MOST_LISTED]:
        problem(f"left out: {error}")
    if len(damage) > _MOST_LISTED:
        problem(f"{counted(len(damage), 'place')} cannot be read; see `verify`")
    if not lives:
        reason = f"no message has the key {key!r}"
        if topic is not None:
            reason = f"no message with the key {key!r} was sent to topic {topic!r}"
        problem(f"{reason}{gone}")
    return bool(damage) or not lives


def _print_life(life: Life, out: Output) -> None:
    """A line for each step, and for a reader what became of the message before them."""
    if out.as_json:
        for step in life.steps:
            of_life = {"transaction": life.transaction, "damage": [str(e) for e in life.damage]}
            stored = {"storeTimestamp": shown_time(step.storeTimestamp)}
            print_json({**asdict(step), **stored, **of_life})
        return
    say(f"message {life.uniqKey or life.steps[0].msgId}: {life.outcome}")
    for step in life.steps:
        place = f"{step.topic}/{step.queueId}@{step.queueOffset}"
        if step.queueOffset is None:
            place = f"{step.topic}/{step.queueId}, in no queue"
        head = f"  {shown_time(step.storeTimestamp)}  {step.step:<12}"
        say(f"{head}{place}" + (f"  ({step.about})" if step.about else ""))
