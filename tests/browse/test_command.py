"""`rmqstore browse` as a process: its address, its end, what it says over SSH and without its libraries."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
import webbrowser
from collections.abc import Mapping
from importlib.util import find_spec

import pytest

from tests.support.golden import Golden
from tests.support.running.child import python
from tests.support.running.commands import COMMAND, call, complaint

NAME = "clean-5.2.0"
ADDRESS = re.compile(r"(http://127\.0\.0\.1:(\d+)/[\w-]{32}/)  \(ctrl-C ends it\)\n")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal_and_leaves_the_store_alone(
    untouched: Golden, how: signal.Signals
) -> None:
    words = [*COMMAND, "browse", untouched(NAME).path, "--no-open"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        found = ADDRESS.fullmatch(process.stdout.readline())
        assert found is not None
        for page in ("", "topic?name=orders"):
            with urllib.request.urlopen(found[1] + page) as got:
                assert b"rmqstore browse</title>" in got.read()
        process.send_signal(how)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (0, "", "")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that the command opened, on a host with a screen."""
    addresses: list[str] = []
    monkeypatch.setattr(webbrowser, "open", addresses.append)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    return addresses


def test_it_opens_a_browser(golden: Golden, opened: list[str]) -> None:
    done = call("browse", golden(NAME).path)
    found = ADDRESS.fullmatch(done.stdout)
    assert (done.returncode, opened) == (0, [found and found[1]])


@pytest.mark.parametrize(
    ("words", "environment"), [(["--no-open"], {}), ([], {"DISPLAY": "", "WAYLAND_DISPLAY": ""})]
)
def test_it_opens_none(
    golden: Golden,
    opened: list[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    environment: Mapping[str, str],
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert call("browse", golden(NAME).path, *words).returncode == 0
    assert opened == []


@pytest.mark.parametrize(
    ("connection", "host"),
    [("10.0.0.7 50022 10.0.0.5 22", "10.0.0.5"), ("fe80::1 5 fe80::2 2222", "fe80::2 -p 2222")],
)
def test_over_ssh_it_prints_the_command_of_a_tunnel(
    golden: Golden, opened: list[str], monkeypatch: pytest.MonkeyPatch, connection: str, host: str
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", connection)
    first, tunnel = call("browse", golden(NAME).path).stdout.splitlines(keepends=True)
    found = ADDRESS.fullmatch(first)
    assert found is not None
    assert tunnel == f"from your own host: ssh -N -L {found[2]}:127.0.0.1:{found[2]} {host}\n"
    assert opened == []


def test_a_port_that_is_taken_is_refused(golden: Golden, opened: list[str]) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = call("browse", golden(NAME).path, "--port", str(port))
    assert done.returncode == 2
    assert f"port {port} cannot be had: " in done.stderr
    said = call("browse", golden(NAME).path, "--port", str(port)).stdout
    assert said.startswith(f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize("name", ["starlette", "uvicorn", "jinja2", "matplotlib", "duckdb"])
def test_without_its_libraries_it_names_what_to_install(
    golden: Golden, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real = find_spec
    monkeypatch.setattr(
        "rmq_store.errors.find_spec", lambda one: None if one == name else real(one)
    )
    said = complaint("browse", golden(NAME).path, expect=2)
    assert "[RMQSTORE_BROWSE_UNAVAILABLE] browsing needs " in said
    assert said.endswith("pip install 'rmqstore[browse]'\n")


def test_no_other_command_loads_them() -> None:
    script = (
        "import sys; sys.argv = ['rmqstore', '--help']\n"
        "from rmq_store.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: print(sorted({'starlette', 'uvicorn', 'jinja2'} & set(sys.modules)))"
    )
    said = python(script)
    assert said.endswith("[]\n")
    assert "browse" in said


def test_a_broker_that_runs_may_have_its_name(golden: Golden, opened: list[str]) -> None:
    store = golden("multipath-5.5.0")
    words = ("--broker-conf", store.conf, "--broker-name", "b", "--no-open")
    done = call("browse", store.path, *words)
    assert done.returncode in (0, 2), os.linesep
