"""The log of a Delta table, as far as an export has to know it: its versions and their commits.

By Delta's transaction log protocol, sections "Delta Log Entries" and "Actions". The package that
writes Delta has no question for "which files has version N added".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from jobs.exporting.step import ManifestError

_COMMIT = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True, slots=True)
class Commit:
    """What a version did: files it added, its application transaction, what the writer said of it."""

    version: int
    added: tuple[str, ...]  # below the table's folder
    transaction: tuple[str, int] | None  # application, its version
    said: str | None


def latest_version(table: Path) -> int:
    """The newest version of a table; -1 where there is none."""
    return max(_versions(table), default=-1)


def commits(table: Path, start: int, stop: int, *, whole: bool) -> Iterator[Commit]:
    """The versions [start, stop), oldest first; those that Delta has cleaned away are left out.

    `whole`: a ManifestError where one was.
    """
    for number in range(start, stop):
        path = table / "_delta_log" / f"{number:020d}.json"
        try:
            with path.open(encoding="utf-8") as lines:
                yield _commit(number, lines)
        except FileNotFoundError:
            if whole:
                raise ManifestError(
                    path,
                    reason="this part of the Delta table's log was cleaned away, and what an export "
                    "that was killed had added to the table cannot be told without it",
                    advice="Compare the table with the newest wave of the manifest; export into a "
                    "new folder if in doubt",
                ) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ManifestError(
                path,
                reason=f"cannot be read as a commit of a Delta table: {error!r}",
                advice="See what Delta says of the table; export into a new folder",
            ) from error


def _versions(table: Path) -> Iterator[int]:
    log = table / "_delta_log"
    names = (one.name for one in log.iterdir()) if log.is_dir() else ()
    yield from (int(match[1]) for match in map(_COMMIT.fullmatch, names) if match)


def _commit(version: int, lines: Iterator[str]) -> Commit:
    added: list[str] = []
    transaction: tuple[str, int] | None = None
    said: str | None = None
    for line in lines:
        action = json.loads(line)
        if "add" in action:
            # A URI: what a name has of % and blanks stands encoded in it.
            added.append(unquote(action["add"]["path"]))
        elif "txn" in action:
            transaction = action["txn"]["appId"], int(action["txn"]["version"])
        elif "commitInfo" in action:
            said = action["commitInfo"].get("userMetadata")
    return Commit(version, tuple(added), transaction, said)
