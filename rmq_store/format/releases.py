"""Differences between broker releases: one table with the first and last release of each."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rmq_store.errors import InvalidArgumentError

Version = tuple[int, int, int]

OLDEST: Version = (4, 3, 0)
NEWEST: Version = (5, 5, 1)
_LAST_MINOR = {4: 9, 5: 5}  # of each major release


@dataclass(frozen=True, slots=True)
class Trait:
    """A difference in releases from `since` (included) until `until` (excluded; None: still valid)."""

    name: str
    since: Version
    until: Version | None
    meaning: str

    def holds_in(self, release: Version) -> bool:
        """Whether `release` has this trait."""
        return self.since <= release and (self.until is None or release < self.until)


TRAITS: tuple[Trait, ...] = (
    Trait("no_last_separator", (4, 9, 1), (5, 2, 0), "the last property does not end in 0x02"),
    Trait(
        "batch_outer_properties",
        (4, 8, 0),
        (5, 3, 4),
        "members of a MessageBatch also carry the batch's properties",
    ),
    Trait("slot_count_is_item_count", OLDEST, (4, 7, 1), "hashSlotCount counts items, not slots"),
    Trait("ipv6_hosts", (4, 6, 0), None, "hosts of 20 bytes, by two bits of sysFlag"),
    Trait("compression_types", (4, 9, 4), None, "bits of sysFlag name LZ4, zstd or zlib"),
    Trait("size_limit_on_body", (4, 9, 4), None, "maxMessageSize limits the body, not the record"),
    Trait("overflow_to_min", OLDEST, (4, 9, 4), "getMessage far beyond max restarts at min 0"),
    Trait("batch_queues", (5, 0, 0), None, "topics of queue.type BatchCQ; inner batches"),
    Trait("abort_holds_pid", (5, 0, 0), None, "abort holds the process id; abort.bak remains"),
    Trait("json_data_version", (5, 0, 0), None, "config files carry dataVersion and attributes"),
    Trait("v2_magic", (5, 1, 0), None, "topics over 127 characters, as records of magic V2"),
    Trait("confirm_offset", (5, 1, 1), None, "checkpoint@32 confirmPhyOffset"),
    Trait("record_crc", (5, 2, 0), None, "enabledAppendPropCRC: __CRC32# at the record's end"),
    Trait("tag_items", (5, 4, 0), None, "the index holds topic#T#tags of every message with TAGS"),
    Trait("recovery_file_limit", (5, 4, 0), None, "recovery reads at most 10 log files"),
    Trait("fastjson2", (5, 4, 0), None, "config files: one map entry per line"),
    Trait("checkpoint_48", (5, 5, 0), None, "checkpoint@40 logicsPhysicalOffset"),
)
_BY_NAME = {trait.name: trait for trait in TRAITS}


@dataclass(frozen=True, slots=True)
class Dialect:
    """The traits of one release."""

    release: Version

    def has(self, name: str) -> bool:
        """Whether the release has the trait `name`."""
        return _BY_NAME[name].holds_in(self.release)

    def __str__(self) -> str:
        return ".".join(map(str, self.release))


def dialect(release: str | None = None) -> Dialect:
    """The traits of a release such as "4.9.7"; of the newest one by default.

    Raises InvalidArgumentError if the text is not a release, is one before 4.3, or one that did not
    exist when this was written, because its files may differ.
    """
    if release is None:
        return Dialect(NEWEST)
    match = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,3})(?:\.([0-9]{1,3}))?", str(release))
    version = match and (int(match[1]), int(match[2]), int(match[3] or 0))
    if not version or version < OLDEST or version[1] > _LAST_MINOR.get(version[0], -1):
        raise InvalidArgumentError(
            reason=f"release {release!r} is not supported",
            expected="one of 4.3 to 4.9 or 5.0 to 5.5, such as '4.9.7'",
            advice=f"Omit it to use the newest, {Dialect(NEWEST)}",
        )
    return Dialect(version)
