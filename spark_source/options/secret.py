"""Values of options that may hold credentials: `storageOptions`."""

from __future__ import annotations

from collections.abc import Mapping

from spark_source.options.definitions import OPTIONS

_SECRET = {option.name.casefold() for option in OPTIONS if option.secret}


class Secret(str):
    """An option's value that prints as `***`, and is stored as `***` by whoever stores it.

    As a str it has these three characters only. So no report, table, error, manifest or log can
    have more, whatever it does with the value. Only `reveal` returns what was given.
    """

    __slots__ = ("_value",)
    _value: str

    def __new__(cls, value: str) -> Secret:
        made = super().__new__(cls, "***")
        made._value = reveal(value)
        return made

    def __getnewargs__(self) -> tuple[str]:
        return (self._value,)  # executors need the value


def reveal(value: str) -> str:
    """The value itself, for whoever opens the store."""
    return value._value if isinstance(value, Secret) else value


def hide_secrets(options: Mapping[str, str]) -> dict[str, str]:
    """Options of the source, with a Secret for each value that may hold credentials."""
    return {
        name: Secret(value) if name.casefold() in _SECRET else value
        for name, value in options.items()
    }


def without_secrets(options: Mapping[str, str]) -> dict[str, str]:
    """The options whose values hold no credentials."""
    return {name: value for name, value in options.items() if name.casefold() not in _SECRET}


class HidesSecrets:
    """What the specs of the jobs have in common: `options` of the source, with their secrets hidden."""

    __slots__ = ()
    options: Mapping[str, str]

    def __post_init__(self) -> None:
        """Hide the secrets also of a spec that was made in Python."""
        object.__setattr__(self, "options", hide_secrets(self.options))
