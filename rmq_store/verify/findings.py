"""Findings about a store: position, meaning and advice of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any

from rmq_store.errors import spoken

_KEPT_OF_A_CODE = 50  # findings listed one by one; further ones are counted
# How the codes begin that explain others: what queues and index lack follows from the log.
_CAUSES = ("log-", "checkpoint-ahead")

BEING_WRITTEN = (
    "Normal in a store that a broker is writing. Stop it, or verify a copy, to see all of it"
)
"""What to do about files that changed while they were examined."""


class Severity(Enum):
    """How serious a finding is. A store with only notes has no problem."""

    NOTE = "note"  # normal after a crash, in a hot copy, or by the broker's rules
    WARNING = "warning"  # all messages exist, but a look-up or an answer may be wrong
    ERROR = "error"  # messages are lost, unreachable, or not the requested ones


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `start` and `stop` are bytes of the file `path`, half-open; None means the whole
    file.

    `count` is the number of places that it stands for.
    """

    severity: Severity
    code: str  # stable, such as "log-damaged"
    path: str
    meaning: str
    advice: str
    start: int | None = None
    stop: int | None = None
    count: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "advice", spoken(self.advice))

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain values, with field names as keys."""
        return {**asdict(self), "severity": self.severity.value}


a_note = partial(Finding, Severity.NOTE)
a_warning = partial(Finding, Severity.WARNING)
an_error = partial(Finding, Severity.ERROR)


@dataclass(slots=True)
class Findings:
    """A list of findings. It keeps a limited number per code and counts the others."""

    kept: list[Finding] = field(default_factory=list)
    further: dict[str, Finding] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        """Add a finding."""
        if sum(kept.code == finding.code for kept in self.kept) < _KEPT_OF_A_CODE:
            self.kept.append(finding)
            return
        before = self.further.get(finding.code)
        count = finding.count + (0 if before is None else before.count)
        self.further[finding.code] = replace(
            finding,
            meaning=f"{count} more of this code are not listed; the last one: {finding.meaning}",
            count=count,
        )

    def add_all(self, findings: Iterable[Finding]) -> None:
        """Add several findings."""
        for finding in findings:
            self.add(finding)

    def __iter__(self) -> Iterator[Finding]:
        order, causes = list(Severity), len(_CAUSES)

        def key(one: Finding) -> tuple[int, int]:
            starts = (at for at, start in enumerate(_CAUSES) if one.code.startswith(start))
            return -order.index(one.severity), next(starts, causes)

        return iter(sorted([*self.kept, *self.further.values()], key=key))

    def __len__(self) -> int:
        return len(self.kept) + len(self.further)

    def kinds(self) -> Iterator[tuple[Finding, int]]:
        """The first finding of each code, the worst first, and how many there are of it."""
        codes: dict[str, list[Finding]] = {}
        for finding in self:
            codes.setdefault(finding.code, []).append(finding)
        yield from ((findings[0], len(findings)) for findings in codes.values())

    @property
    def nothing_wrong(self) -> bool:
        """Whether there are only notes, or no findings."""
        return all(finding.severity is Severity.NOTE for finding in self)
