"""Delta for tests: a Python of its own with the release of PySpark that Delta is for, and exports in it.

The extra `delta` may bring an older PySpark than the one all other tests run with, so it is installed
into a virtual environment in the cache folder, by pip; Delta's jar comes from Maven Central, fetched by
Spark as the job asks for it. What cannot be fetched fails the test.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from rmq_store.testing.live_broker.java import CommandFailed, _cached, cache_folder, jdk_tool, run
from tests.support.checkout import CHECKOUT

RUNNER = Path(__file__).with_name("delta_runner.py")


def delta_python() -> Path:
    """A Python with what the package and its extra `delta` need; the package itself is not in it."""
    jdk_tool("java")
    needed = sorted(_needed())
    reported = "\n".join([sys.version, *needed])
    digest = hashlib.sha256(reported.encode()).hexdigest()[:12]

    def make(folder: Path) -> None:
        run([sys.executable, "-m", "venv", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        run([*pip, *needed])

    return _cached(cache_folder() / f"delta-{digest}", make) / "bin" / "python"


def _needed() -> Iterator[str]:
    """The requirements of the package and of its extra, from what pip knows of it."""
    for requirement in requires("rmqstore") or ():
        name, _, condition = requirement.partition(";")
        if not condition or re.search(r"extra == .delta.", condition):
            yield name.strip()


def environment(folder: Path) -> dict[str, str]:
    """For a process of that Python: the checkout's packages, and what pip would have said of them."""
    about = folder / "rmqstore-0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: rmqstore\nVersion: 0\n")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_"))}
    return {**kept, "PYTHONPATH": f"{CHECKOUT}:{folder}", "SPARK_LOCAL_IP": "127.0.0.1"}


class Exports:
    """Exports one after the other, in one session of a Spark that has Delta."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, **question: Any) -> dict[str, Any]:
        """A line to the runner, and its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise CommandFailed(f"the runner ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(answer)
        return found

    def export(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """The report; where it was refused `{"refused": code, "message": ...}`."""
        return self.ask(spec=spec)

    def rows(self, table: Path) -> list[dict[str, Any]]:
        """All rows of a table as Delta reads it: place, body in hex, day."""
        found: list[dict[str, Any]] = self.ask(table=str(table))["rows"]
        return found


@contextmanager
def exports(scratch: Path) -> Iterator[Exports]:
    """A session; its standard error goes to the test's."""
    with subprocess.Popen(
        [str(delta_python()), str(RUNNER)],
        env=environment(scratch),
        cwd=scratch,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Exports(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
