"""Convert reports to JSON objects with camelCase keys, like the columns of the source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

# Fields whose column in the source has another name.
_OTHER_NAMES = {"group": "consumerGroup"}


def camel_case(name: str) -> str:
    """The key for a field: `queue_id` is `queueId`."""
    first, *others = name.split("_")
    return _OTHER_NAMES.get(name) or first + "".join(word.title() for word in others)


def as_json_object(report: Any) -> Any:
    """A report as plain values. Fields of dataclasses become camelCase keys; keys of mappings stay.

    The outermost mapping and those in lists are exceptions: their keys are fields, of a report or a row, so
    they become camelCase.
    """
    if isinstance(report, Mapping):
        return {camel_case(name): _plain(value) for name, value in report.items()}
    return _plain(report)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in fields(value))
        return {camel_case(name): _plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json_object(item) for item in value]
    return value.value if isinstance(value, Enum) else value
