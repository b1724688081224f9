"""Read the versions and commits of a Delta table's log, as far as an export needs them.

Follows Delta's transaction log protocol, sections "Delta Log Entries" and "Actions". The package
that writes Delta cannot say which files version N added.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from rmq_store.files.journal import JournalError
from rmqstore_jobs.exporting.manifest import refuse_outside

_COMMIT = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True, slots=True)
class Commit:
    """What a version did: the files it added, its application transaction, the writer's
    metadata."""

    version: int
    added: tuple[str, ...]  # relative to the table's folder
    transaction: tuple[str, int] | None  # application, its version
    said: str | None


def latest_version(table: Path) -> int:
    """The newest version of a table; -1 if there is none."""
    return max(_versions(table), default=-1)


def commits(table: Path, start: int, stop: int, *, whole: bool) -> Iterator[Commit]:
    """The versions [start, stop), oldest first, without those that Delta deleted.

    `whole`: raise JournalError if Delta deleted one.
    """
    for number in range(start, stop):
        path = table / "_delta_log" / f"{number:020d}.json"
        try:
            with path.open(encoding="utf-8") as lines:
                yield _commit(number, lines)
        except FileNotFoundError:
            if whole:
                raise JournalError(
                    path,
                    reason="Delta deleted this part of its log, which says what an interrupted "
                    "export added to the table",
                    advice="Compare the table with the newest wave of the manifest; export into a "
                    "new folder if in doubt",
                ) from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise JournalError(
                path,
                reason=f"cannot be read as a commit of a Delta table: {error!r}",
                advice="Check the table with Delta, or export into a new folder",
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
            # The path is a URI, so % and blanks in a name are encoded.
            path = unquote(action["add"]["path"])
            refuse_outside(path)
            added.append(path)
        elif "txn" in action:
            transaction = action["txn"]["appId"], int(action["txn"]["version"])
        elif "commitInfo" in action:
            said = action["commitInfo"].get("userMetadata")
    return Commit(version, tuple(added), transaction, said)
