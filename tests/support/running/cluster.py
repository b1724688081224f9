"""A standalone cluster of Spark on loopback: a master and a worker, at ports that the system chooses."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_DEPLOY = "org.apache.spark.deploy"
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")


@contextmanager
def standalone_cluster(work: Path) -> Iterator[str]:
    """The URL of a master that has a worker of two cores, whose executors run in folders of `work`."""
    place = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as stack:
        master = stack.enter_context(_started(f"{_DEPLOY}.master.Master", *place))
        url = _line(master, _MASTER)[1]
        worker = stack.enter_context(
            _started(
                f"{_DEPLOY}.worker.Worker",
                *place,
                *("--cores", "2", "--memory", "1g", "--work-dir", str(work)),
                url,
            )
        )
        _line(worker, _REGISTERED)
        yield url


@contextmanager
def _started(*words: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    environment.pop("SPARK_SUBMIT_OPTS", None)
    process = subprocess.Popen(
        [str(_CLASS), *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _line(process: subprocess.Popen[str], wanted: re.Pattern[str]) -> re.Match[str]:
    """The first line of a daemon that matches. Raises AssertionError if it ends without."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        found = wanted.search(line)
        if found is not None:
            # What it says later would fill the pipe, and stop it.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return found
    raise AssertionError("".join(said))
