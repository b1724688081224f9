"""Addresses of object stores in commands, jobs, options and calls: no credential is shown, and what fails
says why."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.admin.info import store_info
from rmq_store.admin.rebuild import rebuild
from rmq_store.admin.salvage import salvage
from rmq_store.cli.main import COMMANDS, other_commands
from rmq_store.errors import LOG, AccessError, InvalidArgumentError, StoreError, without_credentials
from rmq_store.files.remote.uri_filesystem import error_of_remote, local_path
from rmq_store.recovery import plan_recovery
from rmq_store.report.store_report import store_report
from rmqstore_jobs.replaying.replay_spec import ReplaySpec, check_spec
from spark_source.source import RmqStoreSource
from tests.support.golden import Golden
from tests.support.running.commands import call, complaint

SECRET = "a/Planted+Secret"  # keys of S3 have slashes
ADDRESS = f"s3://AKEY:{SECRET}@bucket/store"
SHOWN = "s3://***@bucket/store"
AZURE = "account.dfs.core.windows.net"
WORDS = {  # what a command needs after STORE
    "table": ("queues",),
    "cat": ("--topic", "orders"),
    "trace": ("ORDER_1",),
    "sql": ("select 1",),
    "diff": (ADDRESS,),
    "report": ("-o", "page.html"),
    "rebuild": ("--to", "target"),
    "salvage": ("--to", "target"),
    "offsets": ("--group", "g"),
    "replay": ("--to", "target"),
    "export": ("--to", "target"),
}
TARGETS = (
    ("report", "STORE", "-o", ADDRESS),
    ("rebuild", "STORE", "--to", ADDRESS),
    ("rebuild", "STORE", ADDRESS),
    ("salvage", "STORE", "--to", ADDRESS),
    ("diff", "STORE", ADDRESS),
    ("sql", "STORE", "--store", ADDRESS, "select 1"),
    ("sql", "STORE", "--parquet", ADDRESS, "select 1"),
    ("info", "STORE", "--broker-conf", ADDRESS),
    ("replay", "STORE", "--to", ADDRESS),
    ("replay", "STORE", "--to-parquet", ADDRESS),
    ("replay", "STORE", "--to-broker", ADDRESS, "--failed", "failed"),
    ("export", "STORE", "--to", ADDRESS),
    ("dlq", "STORE", "--report", ADDRESS),
    ("verify", f"{ADDRESS}/*"),
    ("sql", f"s3://bucket/*/store?secret_key={SECRET}", "select 1"),
)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder of the test, which no secret reaches."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for path in tmp_path.rglob("*"):
        assert "Planted" not in str(path)
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()


@pytest.mark.parametrize("name", sorted({*COMMANDS, *other_commands()}))
def test_no_command_shows_the_credentials_of_its_store(name: str, in_a_folder: Path) -> None:
    done = call(name, ADDRESS, *WORDS.get(name, ()))
    assert (done.returncode, done.stdout) == (2, "")
    assert SHOWN in done.stderr
    assert SECRET not in done.stderr
    assert list(in_a_folder.iterdir()) == []


@pytest.mark.parametrize("words", TARGETS, ids=" ".join)
def test_no_command_shows_the_credentials_of_another_address(
    words: tuple[str, ...], golden: Golden
) -> None:
    store = golden("clean-5.5.0").path
    done = call(*(store if word == "STORE" else word for word in words))
    assert (done.returncode, done.stdout) == (2, "")
    assert SECRET not in done.stderr


CALLS: dict[str, Callable[[str], object]] = {
    "open": MessageStore.open,
    "create": MessageStore.create,
    "append_to": MessageStore.append_to,
    "info": store_info,
    "recover": plan_recovery,
    "report": store_report,
    "rebuild": lambda address: rebuild(address, "target"),
    "salvage": lambda address: salvage(address, "target"),
    "rebuild into": lambda address: rebuild(".", address),
    "load": lambda address: RmqStoreSource({"path": address}).schema(),
    "stores": lambda address: RmqStoreSource({"stores": f'{{"b": "{address}"}}'}).schema(),
    "pattern": lambda address: RmqStoreSource({"path": f"{address}/*"}).schema(),
    "replay to a broker": lambda address: check_spec(
        ReplaySpec(source=".", to_broker=address, failed="failed")
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_error_of_a_call_has_the_credentials(name: str) -> None:
    with pytest.raises(StoreError) as refused:
        CALLS[name](ADDRESS)
    error = refused.value
    said = [repr(error), str(error), str(vars(error)), repr(error.__cause__)]
    assert SECRET not in "".join(said)


def test_errors_and_warnings_hide_credentials_wherever_they_stand(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = StoreError(
        ADDRESS, reason=f"a {ADDRESS}", expected=ADDRESS, actual=ADDRESS, advice=f"Open {ADDRESS}"
    )
    assert str(error).count(SHOWN) == 5
    assert SECRET not in str(error) + str(vars(error))
    LOG.warning("left out %s", ADDRESS)
    assert caplog.messages == [f"left out {SHOWN}"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/store", "s3://bucket/store"),
        ("s3://bucket/a@b/store", "s3://bucket/a@b/store"),
        ("hdfs://host:9000/a@b", "hdfs://host:9000/a@b"),
        ("s3://key@bucket/store", "s3://***@bucket/store"),
        ("s3://:secret@bucket/x", "s3://***@bucket/x"),
        ("s3://key:1/2@bucket/x", "s3://***@bucket/x"),
        ("hdfs://host:9000", "hdfs://host:9000"),
        (f"abfss://container@{AZURE}/x", f"abfss://container@{AZURE}/x"),
        (f"abfss://:secret@{AZURE}/x", f"abfss://***@{AZURE}/x"),
        ("s3:/key:se/cret@bucket/x", "s3:/***@bucket/x"),  # as Path writes it
        ("s3://bucket/a?b=c", "s3://bucket/a?***"),
        ("s3://k:s@bucket/a?b=c", "s3://***@bucket/a?***"),
        ("s3://bucket/day?/store", "s3://bucket/day?/store"),
        ("file:///home/a:b@c", "file:///home/a:b@c"),
        ("/data/a:b@c/store", "/data/a:b@c/store"),
        ("move s3://k:s@a/x to gs://k:s@b/y, or b@c", "move s3://***@a/x to gs://***@b/y, or b@c"),
    ],
)
def test_what_is_hidden_of_a_text(text: str, shown: str) -> None:
    assert without_credentials(text) == shown


def test_a_command_takes_a_file_uri_as_a_folder(golden: Golden, in_a_folder: Path) -> None:
    store = golden("clean-5.5.0").path
    plain = call("queues", store)
    assert (plain.returncode, len(plain.stdout.splitlines()) > 10) == (0, True)
    for address in (f"file://{store}", f"file:{store}"):
        assert call("queues", address) == plain
        assert call("info", address).stdout == call("info", store).stdout
    assert call("salvage", f"file:{store}", "--to", f"file://{in_a_folder}/copy").returncode == 0
    assert (in_a_folder / "copy" / "commitlog").is_dir()
    assert local_path("file:/a") == "/a"


# --- an object store that does not answer -------------------------------------------------------------


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a store at a port of this host where nobody listens."""
    with socket.socket() as taken:  # bound, and so nobody else's; without listen, it refuses
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        yield "s3://bucket/store"


@pytest.mark.campaign
@pytest.mark.parametrize("words", [("queues",), ("report", "-o", "page.html")], ids=" ".join)
def test_an_object_store_that_does_not_answer_is_an_error_with_its_cause(
    words: tuple[str, ...], unreachable: str, in_a_folder: Path
) -> None:
    done = call(words[0], unreachable, *words[1:])
    assert (done.returncode, done.stdout) == (2, "")
    assert "[RMQSTORE_ACCESS] s3://bucket/store: listing failed: AWS Error NETWORK_" in done.stderr
    assert "curlCode: 7, " in done.stderr
    assert SECRET not in done.stderr
    assert list(in_a_folder.iterdir()) == []


TEXTS = {
    f"When listing objects under key 'AKEY' in bucket '{SECRET}': AWS Error ACCESS_DENIED during "
    f"ListObjectsV2 operation: {SECRET}": "AWS Error ACCESS_DENIED",
    f"google::cloud::Status(UNAVAILABLE: Retry policy exhausted, with {SECRET} PerformWork() - CURL error "
    "[6]=Could not resolve hostname error_info={reason=}": "UNAVAILABLE, CURL error [6]=Could not resolve "
    "hostname error",
    f"Unrecognized filesystem type in URI: x://{SECRET}": "Unrecognized filesystem type",
    SECRET: "OSError",
}


@pytest.mark.parametrize("text", TEXTS)
def test_the_cause_is_named_without_what_is_of_the_user(text: str) -> None:
    error = error_of_remote("s3://bucket/store", OSError(text), "listing")
    assert isinstance(error, AccessError)
    assert error.reason == f"listing failed: {TEXTS[text]}"


def test_an_unknown_storage_option_is_named_as_the_cause() -> None:
    options: dict[str, Any] = {"no_such": SECRET}
    with pytest.raises(AccessError, match="storageOptions has a name") as refused:
        MessageStore.open("s3://bucket/store", storage_options=options)
    assert SECRET not in str(refused.value)


def test_a_change_of_a_store_in_an_object_store_is_refused() -> None:
    for words in (("recover",), ("recover", "--apply")):
        assert "works on a folder" in complaint(words[0], "s3://bucket/store", *words[1:], expect=2)
    with pytest.raises(InvalidArgumentError):
        MessageStore.append_to("s3://bucket/store")
