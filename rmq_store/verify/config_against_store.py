"""Check checkpoint, configuration and consumer offsets against the log and the queues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rmq_store.config.consumer_offsets import (
    CONSUMER_FILES,
    DELAY_FILE,
    decode_consumer_offsets,
    decode_delay_offsets,
)
from rmq_store.config.json_files import ConfigFile, Decode, as_it_is, config_names, read_config
from rmq_store.config.topics_json import TOPICS_FILE, decode_topics
from rmq_store.errors import CorruptConfigError, StoreError
from rmq_store.format.layout import ABORT_FILE, CHECKPOINT_FILE, CONFIG_DIR
from rmq_store.markers.checkpoint import Checkpoint
from rmq_store.markers.timer_files import read_timer_check
from rmq_store.store import MessageStore
from rmq_store.verify.findings import Finding, Severity

_DECODED: Mapping[str, Decode[Any]] = {
    TOPICS_FILE: decode_topics,
    DELAY_FILE: decode_delay_offsets,
    **dict.fromkeys(CONSUMER_FILES, decode_consumer_offsets),
}
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
    """Findings for files in config/ that cannot be read, and for those whose .bak was read instead."""
    try:
        names = config_names(store.path)
    except CorruptConfigError as error:
        yield _unreadable(error)
        return
    for name in names:
        try:
            found = read_config(store.path, name, _DECODED.get(name, as_it_is))
        except CorruptConfigError as error:
            yield _unreadable(error)
            continue
        if found is None:
            continue
        if found.problem is not None:
            yield _config_warning("config-backup-used", found, found.problem, _BACKUP_USED)
        if found.doubt is not None:
            yield _config_warning("config-comment", found, found.doubt, "Remove the comment")
    try:
        read_timer_check(store.path)
    except CorruptConfigError as error:
        yield _unreadable(error)


_BACKUP_USED = (
    "It is older: what was written after it is missing. A broker that cannot read the file uses "
    "it too when it starts. Restore the file from a copy, or accept the .bak"
)


def _unreadable(error: CorruptConfigError) -> Finding:
    path, todo = error.path or CONFIG_DIR, error.advice or "Restore a copy"
    return Finding(Severity.ERROR, "config-unreadable", path, error.reason, todo)


def _config_warning(code: str, found: ConfigFile[Any], meaning: str, advice: str) -> Finding:
    return Finding(Severity.WARNING, code, str(found.path), meaning, advice)


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
