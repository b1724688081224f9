"""Check checkpoint, configuration and consumer offsets against the log and the queues."""

from __future__ import annotations

from collections.abc import Iterator

from rmq_store.config.json_files import is_there, read_config_json
from rmq_store.config.topics_json import read_topic_configs
from rmq_store.errors import CorruptConfigError, StoreError
from rmq_store.format.layout import ABORT_FILE, CHECKPOINT_FILE, CONFIG_DIR
from rmq_store.markers.checkpoint import Checkpoint
from rmq_store.store import MessageStore
from rmq_store.verify.findings import Finding, Severity

CONFIG_FILES = (
    "topics.json",
    "consumerOffset.json",
    "subscriptionGroup.json",
    "delayOffset.json",
    "consumerFilter.json",
)
_CHECKPOINT = "Move it away: without it, a broker that has to recover scans the whole log"


def start_findings(store: MessageStore) -> Iterator[Finding]:
    """Findings if the store was not closed cleanly."""
    path = store.path / ABORT_FILE
    if path.exists():
        yield Finding(
            Severity.NOTE,
            "not-closed",
            str(path),
            "a broker has the store open, or did not close it cleanly",
            "If no broker runs, the next start recovers the store",
        )


def checkpoint_findings(
    store: MessageStore, records: int, last_timestamp: int
) -> Iterator[Finding]:
    """Findings of the checkpoint, compared with a log of `records` records, the last one stored at
    `last_timestamp` (ms)."""
    path = store.path / CHECKPOINT_FILE
    try:
        checkpoint = Checkpoint.read(path)
    except StoreError as error:
        # A checkpoint without read permission may be intact, so the advice is not to move it away.
        todo = _CHECKPOINT if isinstance(error, CorruptConfigError) else error.advice or _CHECKPOINT
        yield Finding(Severity.WARNING, "checkpoint-unreadable", str(path), error.reason, todo)
        return
    if checkpoint is None:
        if records:
            yield Finding(
                Severity.NOTE,
                "checkpoint-absent",
                str(path),
                "there is no checkpoint",
                "A broker that has to recover then scans the whole log",
            )
        return
    newest = max(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp)
    # If there are log files, their messages may have expired. If there are none, the log is lost.
    gone = not records and not store.log.chain.segments
    if newest > last_timestamp and (records or gone):
        last = (
            f"the last one in the log is from {last_timestamp} ms"
            if records
            else "the log has none"
        )
        lost = "the end of the log" if records else "the log"
        yield Finding(
            Severity.ERROR,
            "checkpoint-ahead",
            str(path),
            f"it says that messages up to {newest} ms were on the disk, but {last}: {lost} is lost",
            "Search for the missing end in a replica or a copy before a broker starts on this "
            "store",
        )


def config_findings(store: MessageStore) -> Iterator[Finding]:
    """Findings for files in config/ that cannot be read, and their .bak neither."""
    for name in CONFIG_FILES:
        path = store.path / CONFIG_DIR / name
        if not is_there(path) and not is_there(path.with_name(f"{name}.bak")):
            continue
        try:
            if name == "topics.json":
                read_topic_configs(store.path)
            else:
                read_config_json(store.path, name)
        except CorruptConfigError as error:
            yield Finding(
                Severity.ERROR,
                "config-unreadable",
                str(path),
                error.reason,
                error.advice or "Restore a copy",
            )


def consumer_findings(store: MessageStore) -> Iterator[Finding]:
    """Findings for groups whose offset is outside the range of their queue."""
    try:
        offsets = store.consumer_offsets()
    except CorruptConfigError:
        return  # reported already
    path = str(store.path / CONFIG_DIR / "consumerOffset.json")
    states = store.snapshot().queues
    known = {(queue.topic, queue.queue_id): state for queue, state in states.items()}
    for group, topics in offsets.items():
        for topic, queues in topics.items():
            for queue_id, offset in queues.items():
                state = known.get((topic, queue_id))
                if state is None or state.min_offset <= offset <= state.max_offset:
                    continue
                ahead = offset > state.max_offset
                yield Finding(
                    Severity.WARNING,
                    "consumer-ahead" if ahead else "consumer-behind",
                    path,
                    f"group {group} has offset {offset} in {topic}/{queue_id}, which has offsets "
                    f"{state.min_offset} to {state.max_offset}"
                    + (": it may skip new messages" if ahead else ": it lost messages"),
                    "rmqstore offsets resets a group while the broker is down"
                    if ahead
                    else "The broker moves it to the first remaining message",
                )
