"""Checks of a message that is to be written."""

from __future__ import annotations

from rmq_store.config.broker_conf import StoreConfig
from rmq_store.format.layout import MAX_TOPIC_LENGTH, MAX_TOPIC_LENGTH_V1
from rmq_store.format.properties import encode_utf8
from rmq_store.format.releases import Dialect
from rmq_store.format.topics import forbidden_character


def topic_fault(name: str, dialect: Dialect, config: StoreConfig) -> str | None:
    """Why the broker of this release would not store a topic of this name; None if it would."""
    if not name:
        return "the topic is empty"
    wrong = forbidden_character(name)
    if wrong is not None:
        return f"topic {name!r} has the forbidden character {wrong!r}"
    size = len(encode_utf8(name))
    if size > MAX_TOPIC_LENGTH:
        return f"topic {name[:40]!r}... has {size} bytes, at most {MAX_TOPIC_LENGTH} are stored"
    if size <= MAX_TOPIC_LENGTH_V1:
        return None
    if not dialect.has("v2_magic") or config.autoMessageVersionOnTopicLen is False:
        return (
            f"topic {name[:40]!r}... has {size} characters; release {dialect} stores at most "
            f"{MAX_TOPIC_LENGTH_V1} (5.1.0 and later store more)"
        )
    if not name.startswith(("%RETRY%", "%DLQ%")):
        return f"topic {name[:40]!r}... has {size} characters, over {MAX_TOPIC_LENGTH_V1}"
    return None
