"""Replays into a broker whose proxy wants TLS and the credentials of a user (ACL 2.0)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_store import MessageStore
from rmq_store.testing.live_broker.harness import Broker
from rmq_store.testing.live_broker.needs import need_jars
from rmqstore_jobs.replay_targets.to_broker import ACCESS_KEY, SECRET_KEY
from rmqstore_jobs.running.job_command import EXIT_OK, EXIT_STOPPED
from tests.support.checkout import CHECKOUT

RELEASE = "5.5.0"
MESSAGES = 500
USER, SECRET = "replayer-7Q", "horse-battery-93"
RIGHT = {ACCESS_KEY: USER, SECRET_KEY: SECRET}
_AUTH, _PROXY = "org.apache.rocketmq.auth", "org.apache.rocketmq.proxy.auth"

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    need_jars(RELEASE, proxy=True)
    work = tmp_path_factory.mktemp("broker")
    conf: dict[str, str | int | bool] = {
        "authenticationEnabled": True,
        "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
        "authorizationEnabled": True,
        "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
        "innerClientAuthenticationCredentials": json.dumps(
            {"accessKey": USER, "secretKey": SECRET}
        ),
    }
    of_broker = {
        "authenticationMetadataProvider": f"{_AUTH}.authentication.provider."
        "LocalAuthenticationMetadataProvider",
        "authorizationMetadataProvider": f"{_AUTH}.authorization.provider."
        "LocalAuthorizationMetadataProvider",
        "initAuthenticationUser": json.dumps({"username": USER, "password": SECRET}),
    }
    of_proxy = {  # it asks its broker for the users
        "authenticationMetadataProvider": f"{_PROXY}.ProxyAuthenticationMetadataProvider",
        "authorizationMetadataProvider": f"{_PROXY}.ProxyAuthorizationMetadataProvider",
    }
    topics = {name: {"attributes": {"message.type": "NORMAL"}} for name in ("orders", "other")}
    with Broker(
        RELEASE,
        work,
        conf={**conf, **of_broker},
        topics=topics,
        proxy=True,
        proxy_conf={**conf, **of_proxy},
        tls=True,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "store"
    rows = [{"topic": "orders", "queueId": n % 4, "body": b"%04d" % n} for n in range(MESSAGES)]
    with MessageStore.create(path) as store:
        schema = pa.schema({"topic": pa.string(), "queueId": pa.int32(), "body": pa.binary()})
        store.append_batch(pa.RecordBatch.from_pylist(rows, schema=schema))
    return path


def replay(
    source: Path, broker: Broker, folder: Path, credentials: dict[str, str], *more: str
) -> tuple[int, str]:
    """Run the job in a process of its own. Returns its exit code and all that it wrote anywhere."""
    folder.mkdir()
    words = [str(source), "--to-broker", broker.grpc, "--failed", str(folder / "failed")]
    done = subprocess.run(
        [sys.executable, "jobs/replay.py", *words, "--patience", "3", *more],
        cwd=CHECKOUT,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **credentials},
        capture_output=True,
        text=True,
        check=False,
    )
    written = [path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()]
    said = "\n".join([done.stdout, done.stderr, *written])
    joined = re.sub(r"\s", "", said)  # a table breaks lines anywhere
    assert not any(value in joined for value in (SECRET, *credentials.values()))
    return done.returncode, " ".join(said.split())


def test_right_credentials_replay_all_messages(
    source: Path, broker: Broker, tmp_path: Path
) -> None:
    tls = ("--tls", "--tls-ca", str(broker.certificate))
    code, said = replay(source, broker, tmp_path / "run", RIGHT, *tls)
    assert code == EXIT_OK, said
    with MessageStore.open(broker.store) as store:
        bodies = [
            body
            for batch in store.read_batches("orders", columns=["body"])
            for body in batch["body"].to_pylist()
        ]
    assert sorted(bodies) == [b"%04d" % number for number in range(MESSAGES)]


@pytest.mark.parametrize(
    ("credentials", "why"),
    [
        ({ACCESS_KEY: USER, SECRET_KEY: "wrong-secret-55"}, "does not accept the credentials"),
        (
            {ACCESS_KEY: "nobody-31", SECRET_KEY: "wrong-secret-55"},
            "does not accept the credentials",
        ),
        ({}, "wants credentials"),
    ],
)
def test_wrong_credentials_end_with_a_clear_error(
    source: Path, broker: Broker, tmp_path: Path, credentials: dict[str, str], why: str
) -> None:
    tls = ("--tls", "--tls-ca", str(broker.certificate))
    code, said = replay(source, broker, tmp_path / "run", credentials, *tls)
    assert code == EXIT_STOPPED, said
    assert why in said
    assert ACCESS_KEY in said


def test_no_tls_where_the_proxy_wants_it(source: Path, broker: Broker, tmp_path: Path) -> None:
    code, said = replay(source, broker, tmp_path / "run", RIGHT)
    assert code == EXIT_STOPPED, said
    assert "--tls" in said


def test_a_certificate_that_nobody_trusts(source: Path, broker: Broker, tmp_path: Path) -> None:
    code, said = replay(source, broker, tmp_path / "run", RIGHT, "--tls")
    assert code == EXIT_STOPPED, said
    assert "--tls-ca" in said
