"""What a group popped of a running broker through its proxy, and what its files say after it was killed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmq_store.testing.live_broker.harness import Broker
from rmq_store.testing.live_broker.needs import need_jars
from tests.support.log_records import fields
from tests.support.running.commands import objects

RELEASE, TOPIC, GROUP = "5.5.0", "popt", "gp"
MESSAGES, WANTED = 40, 20
INVISIBLE_S = 3600
PATIENCE_S = 60
KV_SERVICE = ("popConsumerKVServiceInit", "popConsumerKVServiceEnable")

pytestmark = pytest.mark.live


@contextmanager
def started(client: Any) -> Iterator[Any]:
    client.startup()
    try:
        yield client
    finally:
        client.shutdown()


def pop_and_acknowledge_some(address: str) -> tuple[set[str], set[str]]:
    """The bodies of the messages that a client was given, and of those that it acknowledged."""
    from rocketmq import (
        ClientConfiguration,
        Credentials,
        FilterExpression,
        Message,
        Producer,
        SimpleConsumer,
    )
    from rocketmq.v5.exception.client_exception import InternalErrorException

    conf = ClientConfiguration(address, Credentials())
    with started(Producer(conf, (TOPIC,))) as producer:
        for number in range(MESSAGES):
            message = Message()
            message.topic, message.body = TOPIC, b"p%d" % number
            producer.send(message)
    given: list[Any] = []
    with started(SimpleConsumer(conf, GROUP, {TOPIC: FilterExpression()})) as consumer:
        end = time.monotonic() + PATIENCE_S
        while len(given) < WANTED:
            try:
                given += consumer.receive(8, INVISIBLE_S)
            except InternalErrorException:  # until the proxy has the settings that the client sent
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)
        acknowledged = given[::3]
        for message in acknowledged:
            consumer.ack(message)
    return ({m.body.decode() for m in given}, {m.body.decode() for m in acknowledged})


@pytest.mark.parametrize("in_database", [False, True], ids=["log", "database"])
def test_the_table_has_what_the_client_did_not_acknowledge(
    tmp_path: Path, in_database: bool
) -> None:
    need_jars(RELEASE, proxy=True)
    broker = Broker(
        RELEASE,
        tmp_path,
        topics={TOPIC: {"attributes": {"message.type": "NORMAL"}}},
        proxy=True,
        conf=dict.fromkeys(KV_SERVICE, in_database),
    )
    groups = {"subscriptionGroupTable": {GROUP: {"groupName": GROUP}}}  # the proxy makes none
    Path(broker.store, "config", "subscriptionGroup.json").write_text(json.dumps(groups))
    with broker:
        given, acknowledged = pop_and_acknowledge_some(broker.grpc)
        broker.kill()
    bodies = {(r.topic, r.queue_id, r.queue_offset): r.body.decode() for r in fields(broker.store)}
    states = {
        bodies[row["topic"], row["queueId"], row["queueOffset"]]: row["state"]
        for row in objects("table", "pop", str(broker.store))
        if row["consumerGroup"] == GROUP
    }
    waiting = {body for body, state in states.items() if state == "invisible"}
    assert waiting == given - acknowledged
    if not in_database:  # which forgets what was acknowledged
        assert {body for body, state in states.items() if state == "acknowledged"} == acknowledged
