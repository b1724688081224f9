"""The broker's JSON files under config/ and their .bak files (ConfigManager)."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from time import time_ns
from typing import Any, Generic, NamedTuple, TypeVar

from rmq_store.config.rocksdb import (
    DatabaseContent,
    data_version_counter,
    names_in_databases,
    read_database,
)
from rmq_store.config.without_file import advice_on_broken
from rmq_store.errors import (
    LOG,
    CorruptConfigError,
    MissingFileError,
    OsErrorsOf,
    from_os_error,
    shown_path,
)
from rmq_store.files.durable_files import LARGEST_JSON, read_file, replace_file
from rmq_store.files.segments import folder_entries
from rmq_store.format.byte_layout import CONFIG_DIR

# A text without its end reaches to the end, so that no later quote is tried as a beginning.
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'
_TOKEN = re.compile(_STRING + r"|([{,]\s*)(-?\d+)(\s*:)", re.DOTALL | re.ASCII)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_DEEPEST = 100  # levels; the broker's own files have four
_MARK = "\ufeff"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_SPACE = " \t\r\n\f\b\x1a\0"  # what all releases skip before and after the value

_MOST_READS = 20
_WRITTEN_WITHIN_S = 0.05
_RECENT_NS = 60 * 10**9

T = TypeVar("T")
Decode = Callable[[Path, dict[str, Any]], T]
"""Makes values of a file's path and content; its CorruptConfigError counts as a file that is unreadable."""
_OFFSETS, _EMPTY = "offsetTable", "it is empty"
_TOO_DEEP = f"it has more than {_DEEPEST} levels"
_EXACT = 1 << 53  # below it a float has all digits of a whole number
_DIGITS = 400  # of the longest number


def undecoded(path: Path, content: dict[str, Any]) -> None:
    """The decoding of a file whose content alone is wanted."""


class ConfigDoubt(NamedTuple):
    """What a user of the values of a file must know: a word for it, a sentence, and what to do."""

    code: str
    meaning: str
    advice: str


_NULL = ConfigDoubt(
    "config-null",
    "it is null, or its table is: brokers read that as no table, and do not use the .bak",
    "Restore the file from a copy or a replica",
)


@dataclass(frozen=True)
class ConfigFile(Generic[T]):
    """A file of `config/` that was read.

    `path`: the file, or its .bak. `problem`: why the .bak was read. `doubt`: what a broker may
    make of this file. `content`: the JSON; `value`: what it was decoded to.
    """

    path: Path
    content: dict[str, Any]
    value: T
    problem: str | None = None
    doubt: ConfigDoubt | None = None

    def warnings(self) -> list[str]:
        """A sentence for each thing that a user of the values must know."""
        said = [] if self.problem is None else [self.problem]
        said += [] if self.doubt is None else [f"{self.doubt.meaning}. {self.doubt.advice}"]
        return [f"{shown_path(os.fspath(self.path))}: {text}" for text in said]


def parse_fastjson(text: str) -> Any:
    """JSON as brokers write it: keys of Integer and Long maps have no quotes (fastjson).

    A byte order mark, and zeros around the value, are passed over, as by every release. What else the
    broker's reader takes (comments, commas before a brace, single quotes) no broker writes. Raises
    ValueError for it, for NaN and Infinity, half a surrogate pair, and more than 100 levels.
    """
    text = text.removeprefix(_MARK).strip(_SPACE)
    try:
        # Most files are JSON as they are: to quote what has no quotes would take three times as long.
        try:
            value = _loaded(text)
        except json.JSONDecodeError:
            value = _loaded(_TOKEN.sub(_with_quotes, text))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _refuse_depth(value)
    if _SURROGATE.search(text):
        # Half a pair is no character; it has no UTF-8, which Arrow and files need.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def _with_quotes(match: re.Match[str]) -> str:
    return match[0] if match[2] is None else f'{match[1]}"{match[2]}"{match[3]}'


def _loaded(text: str) -> Any:
    return json.loads(text, strict=False, parse_float=_fraction, parse_constant=_refuse)


def _fraction(text: str) -> float | int:
    """A number with a fraction; a whole one if a float would not have all its digits."""
    value = float(text)
    if abs(value) < _EXACT or math.isinf(value):
        return value
    whole = Decimal(text)
    if whole.adjusted() > _DIGITS:
        raise ValueError(f"{text} is no number that a broker has")
    return int(whole)


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


def exists_or_is_link(path: Path) -> bool:
    """Whether there is something of this name, if only a link to nothing.

    Raises AccessError if its folder is not readable, CorruptConfigError if that is no folder.
    """
    folder = path.parent
    try:
        if path.exists():
            return True
        path.lstat()
    except FileNotFoundError:
        if folder.is_symlink() and not folder.exists():
            raise _no_folder(folder) from None
        return False
    except NotADirectoryError:
        raise _no_folder(folder) from None
    except OSError as error:
        raise from_os_error(folder, error, "looking into the folder") from error
    return True


def _no_folder(folder: Path) -> CorruptConfigError:
    return CorruptConfigError(
        folder, reason="this is not a folder", advice="Restore the folder from a backup"
    )


def last_write_ms(path: Path) -> int | None:
    """When a file, or a database, was last written (ms); None if it is gone."""
    try:
        files = [path, *path.iterdir()] if path.is_dir() else [path]
        return max(file.stat().st_mtime_ns for file in files) // 1_000_000
    except OSError:
        return None


def last_write_with_backup_ms(path: Path) -> int | None:
    """When a file, or the .bak if it is missing, was written; ms."""
    written = last_write_ms(path)
    return last_write_ms(path.with_name(f"{path.name}.bak")) if written is None else written


def config_names(store: str | os.PathLike[str]) -> list[str]:
    """Sorted names of the JSON files in config/, also of those of which only the .bak is there, or a RocksDB
    database in their place.

    Raises AccessError, CorruptConfigError if config is no folder.
    """
    folder = Path(store) / CONFIG_DIR
    exists_or_is_link(folder / ".bak")
    names = {entry.name.removesuffix(".bak") for entry in folder_entries(folder, "listing files")}
    kept = names_in_databases(Path(store))
    return sorted({*kept, *(name for name in names if name.endswith(".json"))})


def read_config(
    store: str | os.PathLike[str], name: str, decode: Decode[T]
) -> ConfigFile[T] | None:
    """A file of `config/`, or its `.bak` if it is missing or cannot be read; None if there is neither.

    The broker does the same (ConfigManager#load); it writes X.bak before it writes X again. If it keeps
    the content in a RocksDB database, a file beside that is taken in if it is newer. A warning goes to
    the log when the `.bak` is read. `decode` is given the path and the content; its CorruptConfigError
    counts as a file that cannot be read. Raises CorruptConfigError if neither can be read, AccessError
    without permission for the folder or the file.
    """
    kept = read_database(Path(store), name, parse_fastjson)
    if kept is not None:
        return _with_database(kept, _read_settled(store, name, undecoded), decode)
    file = _read_settled(store, name, decode)
    for warning in () if file is None else file.warnings():
        LOG.warning("%s", warning)
    return file


def _with_database(
    kept: DatabaseContent, file: ConfigFile[None] | None, decode: Decode[T]
) -> ConfigFile[T]:
    """What a database has, with the entries of a file beside it that is newer (RocksDBTopicConfigManager
    #merge and the like). Raises CorruptConfigError."""
    if (
        file is None
        or not kept.is_merged
        or data_version_counter(file.content) <= data_version_counter(kept.content)
    ):
        return ConfigFile(kept.path, kept.content, decode(kept.path, kept.content))
    content = dict(file.content)
    for name, table in kept.content.items():
        newer = content.get(name)
        if isinstance(table, dict) and isinstance(newer, dict) and name != "dataVersion":
            content[name] = table | newer
        elif name not in content:
            content[name] = table
    return ConfigFile(file.path, content, decode(file.path, content))


def why_broker_refuses(store: Path, name: str, decode: Decode[Any]) -> str | None:
    """Why a broker does not start on a file of `config/` and its .bak; None if it does.

    It starts on a file that is missing, empty or unreadable, as if the file was empty, unless there is a .bak
    with content that cannot be read either (ConfigManager#load and #loadBak).
    """
    main, backup = (store / CONFIG_DIR / end for end in (name, f"{name}.bak"))
    if _read_one(main, decode)[0] is not None:
        return None
    file, why = _read_one(backup, decode)
    if file is not None or why is None or backup.stat().st_size == 0:
        return None
    return f"neither {name} nor its .bak can be read: {why}"


def _read_settled(
    store: str | os.PathLike[str], name: str, decode: Decode[T]
) -> ConfigFile[T] | None:
    folder = Path(store) / CONFIG_DIR
    paths = (folder / name, folder / f"{name}.bak")
    for _ in range(_MOST_READS - 1):
        before = [*map(_version, paths)]
        try:
            file = _read_one_of(paths, decode)
        except CorruptConfigError:
            if not _is_written(paths, before):
                raise
        else:
            if file is None or file.problem is None or not _is_written(paths, before):
                return file
    return _read_one_of(paths, decode)


def _version(path: Path) -> tuple[int, int, int]:
    """What changes when a file is written or replaced; zeros for a missing file."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0, 0
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _is_written(paths: Sequence[Path], before: Sequence[tuple[int, int, int]]) -> bool:
    """Whether a file that changed in the last minute changes again within a moment: a running broker writes
    in place, and what was read may have been half-written."""
    if max(before)[0] <= time_ns() - _RECENT_NS:
        return False
    time.sleep(_WRITTEN_WITHIN_S)
    return [*map(_version, paths)] != before


def _read_one_of(paths: Sequence[Path], decode: Decode[T]) -> ConfigFile[T] | None:
    """The first readable one of a file and its .bak."""
    main, backup = paths
    file, why_main = _read_one(main, decode)
    if file is not None:
        return file
    file, why_backup = _read_one(backup, decode)
    if file is not None:
        problem = f"read instead of {main.name}: {why_main or 'it is missing'}"
        return ConfigFile(file.path, file.content, file.value, problem, file.doubt)
    if why_main is None and why_backup is None:
        return None
    raise CorruptConfigError(
        main if why_main else backup,
        reason=f"neither this file nor its .bak can be read: {why_main}"
        if why_main
        else f"{main.name} is missing, and this .bak cannot be read: {why_backup}",
        advice=advice_on_broken(main, with_backup=why_backup not in (None, _EMPTY)),
    )


def _read_one(path: Path, decode: Decode[T]) -> tuple[ConfigFile[T] | None, str | None]:
    """A file, or why it cannot be read; neither if it is missing."""
    if not exists_or_is_link(path):
        return None, None
    try:
        raw = read_file(path, LARGEST_JSON)
    except MissingFileError:
        return None, "it is a link to nothing" if path.is_symlink() else None
    except CorruptConfigError as error:  # no regular file, or too large
        return None, error.reason
    try:
        content = parse_fastjson(raw.decode("utf-8", "replace"))
        is_null = content is None
        content = {} if is_null else content
        if not isinstance(content, dict):
            return None, "it is not a JSON object"
        is_null = is_null or content.get(_OFFSETS, 0) is None
        value = decode(path, content)
    except CorruptConfigError as error:
        return None, error.reason
    except ValueError as error:
        return None, _why_no_json(raw, error)
    return ConfigFile(path, content, value, None, _NULL if is_null else None), None


def _why_no_json(raw: bytes, error: ValueError) -> str:
    if not raw.strip():
        return _EMPTY
    if not raw.strip(b"\0"):
        return f"it holds {len(raw)} zero bytes and nothing else"
    if raw[:2] in _UTF_16 or raw[1:2] == b"\0" or raw[:1] == b"\0":
        return "it is in UTF-16, which no broker reads"
    return f"it is no JSON as brokers write it (what a hand wrote, such as comments, they may read): {error}"


def refuse_names_of_older_fastjson(
    path: Path, table: Mapping[str, Any], names: Collection[str]
) -> None:
    """Raise CorruptConfigError for a name that older releases read as one of `names`, and others do not.

    fastjson 1 compares names without case, hyphen and underscore (TypeUtils#fnv1a_64_lower).
    """
    for key in table.keys() - names:
        folded = _folded(key)
        meant = next((name for name in names if _folded(name) == folded), None)
        if meant is not None:
            raise CorruptConfigError(
                path,
                reason=f"it has {key[:40]!r}: brokers before 5.4.0 read that as {meant}, later ones do not",
                advice=f"Write {meant}, if that is meant, or restore the file from a backup",
            )


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


NUMBER = re.compile(r"[+-]?\d{1,40}|-?\d{1,18}(?:,\d{3})+", re.ASCII)
"""A number in quotes as all releases read it for a Long."""


def whole_number(value: Any, bits: int, form: re.Pattern[str] = NUMBER) -> int | None:
    """A number with a sign and so many bits more, or a text of this form; a fraction is cut off.

    None for all else, also for true and false, which only some releases read as numbers.
    """
    if isinstance(value, str) and form.fullmatch(value):
        value = int(value.partition(".")[0].replace(",", ""))
    if type(value) not in (int, float) or not abs(value) <= 1 << bits:
        return None
    number = int(value)
    return number if -(1 << bits) <= number < 1 << bits else None


def refuse_odd_version(path: Path, version: Any, *, optional: bool = False) -> None:
    """Raise CorruptConfigError for a dataVersion that brokers of some releases cannot read.

    `optional`: null and an empty text are none.
    """
    if optional and version in (None, ""):
        return
    if not isinstance(version, dict) or any(
        version.get(name) not in (None, True, False) and whole_number(version[name], 63) is None
        for name in ("counter", "stateVersion", "timestamp")
    ):
        raise CorruptConfigError(
            path,
            reason="dataVersion is not an object with numbers",
            advice="Restore the file from a backup, or remove dataVersion",
        )


def next_version(version: Mapping[str, Any]) -> dict[str, Any]:
    """The dataVersion of a file that changes now and had `version`. A counter that is no number becomes 1."""
    before = version.get("counter")
    count = before + 1 if type(before) is int and abs(before) < 1 << 62 else 1
    return {**version, "counter": count, "timestamp": time_ns() // 1_000_000}


def write_config_json(
    store: str | os.PathLike[str], name: str, text: str, decode: Decode[Any] = undecoded
) -> None:
    """Replace a file of `config/` atomically. The old file becomes the .bak if `decode` can read it.

    A damaged one must not replace a good .bak: it becomes X.damaged.
    """
    path = Path(store) / CONFIG_DIR / name
    kept = "damaged" if _read_one(path, decode)[0] is None else "bak"
    with OsErrorsOf(path, "writing"):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text, old=f"{path}.{kept}" if exists_or_is_link(path) else None)


def to_fastjson(value: Any, indent: str = "") -> str:
    """JSON as the broker writes it: indented by tabs, names sorted, no space after a colon.

    Integer keys have no quotes; only fastjson reads that.
    """
    if isinstance(value, Mapping):
        inner = indent + "\t"
        keys = sorted(value)
        parts = [f"{inner}{to_fastjson(key)}:{to_fastjson(value[key], inner)}" for key in keys]
        return "{" + ("\n" + ",\n".join(parts) + "\n" + indent if parts else "") + "}"
    if isinstance(value, list):
        inner = indent + "\t"
        items = [inner + to_fastjson(item, inner) for item in value]
        return "[" + ("\n" + ",\n".join(items) + "\n" + indent if items else "") + "]"
    return json.dumps(value, ensure_ascii=False)
