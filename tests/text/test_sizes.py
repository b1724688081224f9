"""Counts as text."""

from __future__ import annotations

import pytest

from rmq_store.text.sizes import counted


@pytest.mark.parametrize(
    ("noun", "many"),
    [("entry", "entries"), ("body", "bodies"), ("day", "days"), ("key", "keys"), ("file", "files")],
)
def test_the_plural_of_a_thing(noun: str, many: str) -> None:
    assert [counted(n, noun) for n in (0, 1, 1200)] == [f"0 {many}", f"1 {noun}", f"1,200 {many}"]
