"""What an examination of a store found: each with its place, what it means, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

_KEPT_OF_A_CODE = 50  # findings told one by one; further ones are counted


class Severity(Enum):
    """How much a finding matters. Notes alone mean that nothing is wrong."""

    NOTE = "note"  # what a crash, a hot copy or the broker's own rules leave quite normally
    WARNING = "warning"  # messages are all there, a look-up or an answer may be wrong
    ERROR = "error"  # messages are lost, unreachable, or another than the one asked for


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found. `start` and `stop` are bytes of the file `path`, half-open; None: all of it.

    `count` is how many places of this kind it stands for.
    """

    severity: Severity
    code: str  # stable, such as "log-damaged"
    path: str
    meaning: str
    advice: str
    start: int | None = None
    stop: int | None = None
    count: int = 1

    def to_dict(self) -> dict[str, Any]:
        """As plain values, the names of the fields as keys."""
        return {**asdict(self), "severity": self.severity.value}


@dataclass(slots=True)
class Findings:
    """Findings by code, of each code a limited number one by one; the others are counted."""

    kept: list[Finding] = field(default_factory=list)
    further: dict[str, Finding] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        """Take one down."""
        if sum(one.code == finding.code for one in self.kept) < _KEPT_OF_A_CODE:
            self.kept.append(finding)
            return
        before = self.further.get(finding.code)
        count = finding.count + (0 if before is None else before.count)
        self.further[finding.code] = replace(
            finding,
            meaning=f"{finding.code}: {count} more, not listed one by one; the last of them: "
            + (finding.meaning),
            count=count,
        )

    def add_all(self, findings: Iterable[Finding]) -> None:
        """Take several down."""
        for finding in findings:
            self.add(finding)

    def __iter__(self) -> Iterator[Finding]:
        order = list(Severity)
        found = [*self.kept, *self.further.values()]
        return iter(sorted(found, key=lambda one: -order.index(one.severity)))

    def __len__(self) -> int:
        return len(self.kept) + len(self.further)

    @property
    def nothing_wrong(self) -> bool:
        """Whether there are no findings but notes."""
        return all(finding.severity is Severity.NOTE for finding in self)
