"""The broker's JSON files under config/ and their .bak files (ConfigManager)."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rmq_store.errors import CorruptConfigError, MissingFileError, from_os_error
from rmq_store.files.durable_files import LARGEST_JSON, read_file
from rmq_store.format.layout import CONFIG_DIR

# A text without its end reaches to the end, so that no later quote is tried as a beginning.
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|([{,]\s*)(-?\d+)(\s*:)', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_DEEPEST = 100  # levels; the broker's own files have four

_MOST_READS = 20
_WRITTEN_WITHIN_S = 0.05


def parse_fastjson(text: str) -> Any:
    """JSON as fastjson writes it: keys of Integer and Long maps have no quotes.

    Raises ValueError if the text is not JSON in this form either: also for NaN and Infinity, half a
    surrogate pair, and more than 100 levels.
    """

    def quote(match: re.Match[str]) -> str:
        return match[0] if match[2] is None else f'{match[1]}"{match[2]}"{match[3]}'

    try:
        # Most files are JSON as they are: to quote what has no quotes would take three times as long.
        try:
            value = _loaded(text)
        except json.JSONDecodeError:
            value = _loaded(_TOKEN.sub(quote, text))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _refuse_depth(value)
    if _SURROGATE.search(text):
        # Half a pair is no character; it has no UTF-8, which Arrow and files need.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


_TOO_DEEP = f"it has more than {_DEEPEST} levels"


def _loaded(text: str) -> Any:
    return json.loads(text, strict=False, parse_constant=_refuse)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number of JSON")


def _refuse_depth(value: Any) -> None:
    """Raise ValueError for a value that functions calling themselves could not follow."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(_DEEPEST):
        level = [
            inside
            for one in level
            for inside in (one.values() if isinstance(one, dict) else one)
            if isinstance(inside, (dict, list))
        ]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def is_there(path: Path) -> bool:
    """Whether the file exists. Raises AccessError if its folder is not readable."""
    try:
        return path.exists()
    except OSError as error:
        raise from_os_error(path.parent, error, "looking into the folder") from error


def read_config_json(store: str | os.PathLike[str], name: str) -> dict[str, Any] | None:
    """A file of `config/`, or its `.bak` if it is missing, empty or truncated; None if neither exists.

    The broker renames X to X.bak before it writes X again (ConfigManager#persist). Raises
    CorruptConfigError if a file exists and neither is readable, AccessError without permission for
    the folder or the file.
    """
    folder = Path(store) / CONFIG_DIR
    paths = (folder / name, folder / f"{name}.bak")
    for _ in range(_MOST_READS - 1):
        before = _versions(paths)
        try:
            return _read_one_of(paths)
        except (CorruptConfigError, MissingFileError):
            # A running broker writes the file in place: it may have been half-written.
            time.sleep(_WRITTEN_WITHIN_S)
            if _versions(paths) == before:
                raise
    return _read_one_of(paths)


def _versions(paths: Sequence[Path]) -> list[tuple[int, int, int] | None]:
    """What changes when a file is written or replaced; None for a missing file."""
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            stat = path.stat()
        except OSError:
            found.append(None)
        else:
            found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return found


def _read_one_of(paths: Sequence[Path]) -> dict[str, Any] | None:
    failed: tuple[Path, str] | None = None
    for path in paths:
        if not is_there(path):
            continue
        try:
            value = parse_fastjson(read_file(path, LARGEST_JSON).decode("utf-8", "replace"))
        except ValueError as error:
            failed = failed or (path, str(error))
            continue
        except CorruptConfigError as error:  # no regular file, or too large
            failed = failed or (path, str(error.reason))
            continue
        if isinstance(value, dict):
            return value
        failed = failed or (path, "it is not a JSON object")
    if failed is None:
        return None
    raise CorruptConfigError(
        failed[0],
        reason=f"neither this file nor its .bak can be read: {failed[1]}",
        advice="Restore it from a backup, or move it away: the messages do not depend on it",
    )


def next_count(version: Mapping[str, Any]) -> int:
    """The counter of a dataVersion for a file that is about to change; 1 if it has no number."""
    before = version.get("counter")
    return before + 1 if type(before) is int and abs(before) < 1 << 62 else 1


def write_config_json(store: str | os.PathLike[str], name: str, text: str) -> None:
    """Replace a file of `config/` atomically and keep the old one as .bak."""
    folder = Path(store) / CONFIG_DIR
    path, fresh = folder / name, folder / f"{name}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)  # of an interrupted write, or a link to a file elsewhere
        with open(fresh, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            os.replace(path, f"{path}.bak")
        os.replace(fresh, path)
    except OSError as error:
        raise from_os_error(path, error, "writing") from error


def to_fastjson(value: Any, indent: str = "") -> str:
    """JSON as the broker writes it: indented by tabs, names sorted, no space after a colon.

    Integer keys have no quotes; only fastjson reads that.
    """
    if isinstance(value, Mapping):
        inner = indent + "\t"
        parts = [f"{inner}{_key(key)}:{to_fastjson(value[key], inner)}" for key in sorted(value)]
        return "{" + ("\n" + ",\n".join(parts) + "\n" + indent if parts else "") + "}"
    if isinstance(value, list):
        inner = indent + "\t"
        items = [inner + to_fastjson(item, inner) for item in value]
        return "[" + ("\n" + ",\n".join(items) + "\n" + indent if items else "") + "]"
    return json.dumps(value, ensure_ascii=False)


def _key(key: str | int) -> str:
    return str(key) if isinstance(key, int) else json.dumps(key, ensure_ascii=False)
