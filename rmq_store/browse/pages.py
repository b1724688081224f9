"""The pages by their addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starlette.responses import Response

from rmq_store.browse.message_lists import FIND_FORM, TOPIC_FORM, find, topic
from rmq_store.browse.one_message import BODY_FORM, TRACE_FORM, as_json, body, message, trace
from rmq_store.browse.page import Form, Page, Question, address
from rmq_store.browse.state_pages import (
    GROUPS_FORM,
    SQL_FORM,
    group,
    groups,
    overview,
    plots,
    sql,
    table,
    topics,
)

PAGES: Mapping[str, Callable[[Question], Page | Response]] = {
    "": overview,
    "topics": topics,
    "topic": topic,
    "find": find,
    "message": message,
    "body": body,
    "json": as_json,
    "trace": trace,
    "groups": groups,
    "group": group,
    "table": table,
    "sql": sql,
    "plots": plots,
}
"""The pages by the last part of their addresses."""

FORMS: Mapping[str, Form] = {
    form.page: form
    for form in (TOPIC_FORM, FIND_FORM, BODY_FORM, TRACE_FORM, GROUPS_FORM, SQL_FORM)
}
"""What asks again where a page cannot be made."""

MENU = (
    ("Overview", "."),
    ("Topics", "topics"),
    ("Find", "find"),
    ("Trace", "trace"),
    ("Groups", "groups"),
    ("Dead letters", address("table", name="deadLetters")),
    ("Delayed", address("table", name="scheduled")),
    ("Tables", "table"),
    ("SQL", "sql"),
    ("Report", "plots"),
)
"""What every page leads to: texts and addresses."""
