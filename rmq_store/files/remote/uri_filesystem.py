"""File systems of pyarrow.fs, opened from URIs and storage options."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

from rmq_store.errors import (
    AccessError,
    InvalidArgumentError,
    MissingFileError,
    StoreError,
    without_credentials,
)

_URI = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
# As Arrow words it. The text also has the key, whose name may be a number, and the id of the request.
_IS_GONE = re.compile(
    r"AWS Error NO_SUCH_|HTTP status(?: code:)? 404\b|Status\(NOT_FOUND|Azure Error: \[\w*NotFound\]"
)

# Causes as Arrow and the clients in it word them: names of errors and texts of curl, nothing of the user.
_CAUSE = re.compile(
    r"AWS Error [A-Z_]+|HTTP status(?: code:)? \d{3}|curlCode: \d+, [A-Za-z' ]+"
    r"|CURL error \[\d+\]=[A-Za-z' ]+|(?<=Status\()[A-Z_]+|Azure Error: \[\w+\]"
    r"|Unrecognized filesystem type|Cannot parse URI|Unable to load lib\w+"
)
_MAGIC = re.compile(r"[*?\[]")


def local_path(path: str) -> str:
    """The path without `file://`, or `file:` as Hadoop has it; a URI of an object store as it is.

    Every path of a store that a user gives comes through here. Raises InvalidArgumentError for a URI with
    credentials.
    """
    for scheme in ("file://", "file:"):
        if path.startswith(f"{scheme}/"):
            return path.removeprefix(scheme)
    if without_credentials(path) != path:
        raise _with_settings(path)
    return path


def _with_settings(uri: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        uri,
        reason="credentials or settings in a path would appear in plans and logs",
        advice="Set them in the environment, or with option storageOptions",
    )


def is_uri(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URI with a file system, such as s3://bucket/store."""
    return _URI.match(os.fspath(path)) is not None


def absolute_path(path: str) -> str:
    """The path for a process with another working folder: a local one made absolute, a URI as it is.

    Raises InvalidArgumentError for a URI with credentials.
    """
    local = local_path(path)
    return local if is_uri(local) else os.path.abspath(local)


def real_path(path: str) -> str:
    """The path by which to know a store again: a local one without links, a URI as it is."""
    local = absolute_path(path)
    return local if is_uri(local) else os.path.realpath(local)


def error_of_object_store_address(address: str) -> InvalidArgumentError:
    """The error for the address of a store where only a folder will do."""
    return InvalidArgumentError(
        address,
        reason="this works on a folder, and not on an object store",
        advice="Copy the store into a folder. Commands that print messages and tables, and rmqstore report, "
        "read it where it is",
    )


class StorageOptions(dict[str, str]):
    """Options to open a file system with. They may hold credentials, so `repr` hides them."""

    def __repr__(self) -> str:
        return "StorageOptions(hidden)"

    __str__ = __repr__


def file_system(uri: str, options: Mapping[str, str] | None) -> tuple[Any, str]:
    """The file system (pyarrow.fs) of an address, and the path in it.

    Raises InvalidArgumentError for credentials in the address, AccessError.
    """
    from pyarrow import fs as pafs  # slow import: loads every file system

    local_path(uri)
    try:
        parts = urlsplit(uri)
        if parts.query:
            raise _with_settings(uri.partition("?")[0])
        if options and parts.scheme == "s3":
            return pafs.S3FileSystem(**_typed(options)), f"{parts.netloc}{parts.path}"
        if options and parts.scheme in ("gs", "gcs"):
            return pafs.GcsFileSystem(**_typed(options)), f"{parts.netloc}{parts.path}"
        fs, base = pafs.FileSystem.from_uri(uri)
    except (OSError, ValueError, TypeError) as error:
        raise error_of_remote(uri, error, "opening the file system") from None
    return fs, base.rstrip("/")


def _typed(options: Mapping[str, str]) -> dict[str, Any]:
    words = {"true": True, "false": False}
    return {name: words.get(str(value).lower(), value) for name, value in options.items()}


def error_of_remote(where: str, error: BaseException, doing: str) -> StoreError:
    """Our error for an object store's error, with the cause as far as its text has words that are known: the
    rest may quote credentials."""
    if isinstance(error, FileNotFoundError) or _IS_GONE.search(str(error)):
        return MissingFileError(
            where,
            reason=f"{doing}: it does not exist",
            advice="It may have expired and been deleted; open the store again",
        )
    return AccessError(
        where,
        reason=f"{doing} failed: {_cause(error)}",
        advice="Check the address, the credentials in the environment or in storageOptions, and the network",
    )


def _cause(error: BaseException) -> str:
    """What a file system says of an error, without values of this user."""
    if isinstance(error, TypeError):
        return "storageOptions has a name or a value that the file system's class does not take"
    words = dict.fromkeys(match[0].strip() for match in _CAUSE.finditer(str(error)))
    code = getattr(error, "errno", None)
    return ", ".join(words) or (os.strerror(code) if code else type(error).__name__)


def parse_storage_options(value: str) -> StorageOptions:
    """Options from a JSON object of strings. Raises ValueError, without the value, if it is not one."""
    try:
        options = json.loads(value)
    except json.JSONDecodeError:
        options = None
    if not isinstance(options, dict):
        raise ValueError("is not a JSON object")
    return StorageOptions({str(name): str(option) for name, option in options.items()})


def has_pattern(address: str) -> bool:
    """Whether a path or address contains a glob character: `*`, `?`, `[`."""
    return _MAGIC.search(address) is not None


def matching_addresses(uri: str, options: Mapping[str, str] | None = None) -> list[str]:
    """The sorted addresses of the folders that match a pattern.

    An address that exists literally matches itself. `options`: as for `MessageStore.open`. `*` and
    `?` match neither a slash nor a leading dot. Raises InvalidArgumentError for a pattern in the
    bucket's name, AccessError.
    """
    # Not urlsplit: it treats the text after a question mark as a query.
    scheme, _, rest = uri.partition("://")
    place, _, path = rest.partition("/")
    if has_pattern(place):
        raise InvalidArgumentError(
            f"{scheme}://{place}",
            reason="the bucket's name contains a pattern",
            advice="Use patterns for folders in a bucket; for several buckets use load([a, b])",
        )
    parts = path.rstrip("/").split("/")
    literal = next(number for number, part in enumerate(parts) if has_pattern(part))
    front = "/".join([f"{scheme}://{place}", *parts[:literal]])
    fs, base = file_system(front, options)
    try:
        if _is_folder(fs, "/".join([base, *parts[literal:]])):
            return [uri]
        folders = [""]
        for part in parts[literal:]:
            folders = [
                f"{folder}/{name}" for folder in folders for name in _names(fs, base + folder, part)
            ]
    except (OSError, ValueError) as error:
        raise error_of_remote(uri, error, "listing") from None
    return [front + folder for folder in sorted(folders)]


def _names(fs: Any, folder: str, part: str) -> list[str]:
    """The folders in `folder` whose names match one part of a pattern."""
    from pyarrow import fs as pafs  # slow import: loads every file system

    if not has_pattern(part):
        return [part] if _is_folder(fs, f"{folder}/{part}") else []
    return [
        info.base_name
        for info in fs.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
        if info.type == pafs.FileType.Directory
        and fnmatchcase(info.base_name, part)
        and (part.startswith(".") or not info.base_name.startswith("."))
    ]


def _is_folder(fs: Any, path: str) -> bool:
    from pyarrow import fs as pafs  # slow import: loads every file system

    return bool(fs.get_file_info(path).type == pafs.FileType.Directory)
