"""Which group and topic a retry topic stands for, by the rule of the broker's KeyBuilder."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rmq_store.format.topics import KnownNames, dead_letter_origin, retry_origin

TOPICS = frozenset({"orders", "a_b", "b", "%RETRY%g_orders"})


@pytest.mark.parametrize(
    ("name", "properties", "expected"),
    [
        # Version 2: the sign is in no name of a user, so it decides before all properties.
        ("g2+orders", {}, ("g2", "orders")),
        ("g_2+a_b", {"RETRY_TOPIC": "older", "ORIGIN_GROUP": "g"}, ("g_2", "a_b")),
        # KeyBuilder#parseNormalTopic takes two parts, and no other number of them.
        ("g+a+b", {}, ("g+a+b", None)),
        ("g+", {}, ("g+", None)),
        # Version 1, with the property of brokers from 5.4 on.
        ("g_orders", {"ORIGIN_GROUP": "g"}, ("g", "orders")),
        ("g_a_b", {"ORIGIN_GROUP": "g_a"}, ("g_a", "b")),
        ("g_a_b", {"ORIGIN_GROUP": "g"}, ("g", "a_b")),
        ("g_orders", {"ORIGIN_GROUP": "g", "RETRY_TOPIC": "older"}, ("g", "orders")),
        # A pop of the retry topic itself keeps its name.
        ("g_orders", {"ORIGIN_GROUP": "g_orders", "RETRY_TOPIC": "b"}, ("g_orders", "b")),
        ("g_orders", {"ORIGIN_GROUP": "other"}, ("g", "orders")),
        # Sent back by a push consumer: the whole name is the group.
        ("g", {"RETRY_TOPIC": "orders"}, ("g", "orders")),
        ("g_orders", {"RETRY_TOPIC": "orders"}, ("g_orders", "orders")),
        ("g_orders", {"DLQ_ORIGIN_TOPIC": "b"}, ("g_orders", "b")),
        # Version 1 before 5.4: no property says so.
        ("g_orders", {}, ("g", "orders")),
        ("g_2_orders", {}, ("g_2", "orders")),
        ("g_a_b", {}, ("g_a_b", None)),  # of g and a_b, or of g_a and b
        ("g_a_b", {"REAL_TOPIC": "a_b"}, ("g", "a_b")),
        ("g_unknown", {}, ("g_unknown", None)),
        ("_orders", {}, ("_orders", None)),
        ("g_", {}, ("g_", None)),
        ("g", {}, ("g", None)),
    ],
)
def test_group_and_topic_of_a_retry_topic(
    name: str, properties: Mapping[str, str], expected: tuple[str, str | None]
) -> None:
    assert retry_origin("%RETRY%" + name, properties, KnownNames(TOPICS)) == expected


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({"g"}, ("g", "a_b")),
        ({"g_a"}, ("g_a", "b")),
        ({"g_a_b"}, ("g_a_b", None)),
        ({"g", "g_a"}, ("g_a_b", None)),
        ({"other"}, ("g_a_b", None)),
    ],
)
def test_the_group_with_offsets_in_the_topic_decides(
    groups: set[str], expected: tuple[str, str | None]
) -> None:
    known = KnownNames(TOPICS, {"%RETRY%g_a_b": groups, "%RETRY%x": {"g"}})
    assert retry_origin("%RETRY%g_a_b", {}, known) == expected


def test_a_dead_letter_names_its_group_whole() -> None:
    properties = {"RETRY_TOPIC": "orders", "DLQ_ORIGIN_TOPIC": "payments"}
    assert dead_letter_origin("%DLQ%g_orders", properties) == ("g_orders", "payments")
    assert dead_letter_origin("%DLQ%g+x", {"RETRY_TOPIC": "orders"}) == ("g+x", "orders")
