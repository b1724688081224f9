"""A store as a notebook shows it."""

from __future__ import annotations

from html import escape

from rmq_store.admin.info import facts_of, info_of
from rmq_store.errors import StoreError
from rmq_store.escaping import printable
from rmq_store.store import MessageStore


def html_of_store(store: MessageStore) -> str:
    """What `rmqstore info` says of a store now, as an HTML table; of one that cannot be read, its error."""
    try:
        facts = facts_of(info_of(store))
    except StoreError as error:
        facts = [("store", repr(store)), ("error", str(error))]
    rows = (f"<tr><th>{_safe(name)}</th><td>{_safe(value)}</td></tr>" for name, value in facts)
    return f"<table>{''.join(rows)}</table>"


def _safe(text: str) -> str:
    return escape(printable(text))
