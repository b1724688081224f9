"""Reports as JSON objects whose keys are camelCase, as the columns of the source are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

# What the source's columns call it.
_OTHERWISE = {"group": "consumerGroup"}


def camel_case(name: str) -> str:
    """The key for a field: `queue_id` is `queueId`."""
    first, *others = name.split("_")
    return _OTHERWISE.get(name) or first + "".join(word.title() for word in others)


def as_json_object(report: Any) -> Any:
    """A report as plain values: fields of dataclasses become keys, and the keys of mappings stay.

    A mapping is data (topic -> count), but for the outermost: that has a report's fields.
    """
    if isinstance(report, Mapping):
        return {camel_case(name): _plain(value) for name, value in report.items()}
    return _plain(report)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        return {camel_case(name): _plain(one) for name, one in named.items()}
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value.value if isinstance(value, Enum) else value
