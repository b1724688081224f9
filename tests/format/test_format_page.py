"""The pages about the format and the code say the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rmq_store import Gap
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import InvalidArgumentError
from rmq_store.format.byte_layout import (
    CHECKPOINT,
    DEFAULT_MAX_HASH_SLOTS,
    DEFAULT_MAX_INDEX_ITEMS,
    INDEX_HEADER,
    INDEX_ITEM,
    RECORD_HEAD,
)
from rmq_store.format.hashes import java_string_hash
from rmq_store.format.queues import BATCH_QUEUE_ENTRY, EXT_HEAD, QUEUE_ENTRY
from rmq_store.format.releases import NEWEST, OLDEST, TRAITS, Version, dialect
from tests.support.checkout import CHECKOUT

DOCS = CHECKOUT / "docs"
PAGES = [
    DOCS / f"format{part}.md"
    for part in ("", "-commitlog", "-consumequeue", "-index", "-checkpoint", "-config")
]


def tables(*header: str) -> list[list[list[str]]]:
    """The cells of every table of the pages with that header."""
    lines = "\n".join(page.read_text("utf-8") for page in PAGES).splitlines()
    found = []
    for number, line in enumerate(lines):
        if cells(line) == list(header):
            rows = []
            for row in lines[number + 2 :]:
                if not row.startswith("|"):
                    break
                rows.append(cells(row))
            found.append(rows)
    return found


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []


@pytest.mark.parametrize(
    ("place", "structure"),
    [
        (0, RECORD_HEAD),
        (1, QUEUE_ENTRY),
        (2, BATCH_QUEUE_ENTRY),
        (3, EXT_HEAD),
        (4, INDEX_HEADER),
        (5, INDEX_ITEM),
        (6, CHECKPOINT),
    ],
)
def test_the_structures_are_those_of_the_code(place: int, structure: np.dtype[Any]) -> None:
    assert structure.fields is not None
    expected = [
        [f"`{name}`", str(field[1]), field[0].str.lstrip(">|")]
        for name, field in structure.fields.items()
    ]
    found = tables("field", "at", "type", "meaning")
    assert len(found) == 7
    assert [row[:3] for row in found[place]] == expected


def test_the_gaps_are_those_of_the_code() -> None:
    (found,) = tables("gap", "when")
    assert [row[0] for row in found] == ["FILLER", "UNWRITTEN", *(g.name for g in list(Gap)[2:])]


def test_the_traits_of_releases_are_those_of_the_code() -> None:
    def spelled(version: Version | None) -> str:
        return "" if version is None else ".".join(map(str, version))

    (found,) = tables("trait", "since", "until", "meaning")
    assert found == [
        [f"`{trait.name}`", spelled(trait.since), spelled(trait.until), trait.meaning]
        for trait in TRAITS
    ]


@pytest.mark.parametrize("trait", TRAITS, ids=lambda trait: str(trait.name))
def test_a_trait_holds_from_since_up_to_until(trait: Any) -> None:
    assert trait.holds_in(trait.since)
    assert not trait.holds_in((0, 0, 0))
    if trait.until is None:
        assert dialect().has(trait.name)
    else:
        assert trait.since < trait.until
        assert not trait.holds_in(trait.until)
        assert not dialect().has(trait.name)


def test_a_release_is_a_version_from_4_3_on() -> None:
    assert dialect().release == NEWEST
    assert dialect("4.3").release == OLDEST == dialect("4.3.0").release
    assert dialect("4.9.7").has("no_last_separator")
    assert str(dialect("5.2")) == "5.2.0"
    for wrong in ("4.2.9", "five", "5", "5.x", ""):
        with pytest.raises(InvalidArgumentError, match=r"one of 4\.3 to 4\.9"):
            dialect(wrong)


def test_the_default_sizes_are_those_of_the_code() -> None:
    """Those that other descriptions get wrong."""
    said = " ".join(PAGES[0].read_text("utf-8").split())
    queue = StoreConfig().queue_file_size
    assert queue == 300_000 * QUEUE_ENTRY.itemsize
    assert f"the default file has {queue:,} bytes" in said
    assert f"`{queue:020d}`" in said
    index = INDEX_HEADER.itemsize + 4 * DEFAULT_MAX_HASH_SLOTS
    index += INDEX_ITEM.itemsize * DEFAULT_MAX_INDEX_ITEMS
    assert f"{DEFAULT_MAX_HASH_SLOTS:,} and {DEFAULT_MAX_INDEX_ITEMS:,}, so {index:,} bytes" in said
    assert java_string_hash("FB") == java_string_hash("Ea")
