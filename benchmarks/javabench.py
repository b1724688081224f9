"""Time the store classes of Apache RocketMQ, for comparison.

    python -m benchmarks.javabench put STORE --messages 200000
    python -m benchmarks.javabench read STORE

Needs a JDK, and Maven the first time (see rmq_store/testing/live_broker/java.py).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from rmq_store.testing.live_broker.broker_files import Conf, java_value
from rmq_store.testing.live_broker.java import JVM_OPENS, class_path, jdk_tool, run

RELEASE = "5.5.0"
SOURCE = Path(__file__).resolve().parent / "java/Bench.java"
# Enough for every verb, and fixed, so that figures of one machine are comparable.
JVM = ("-Xms1g", "-Xmx2g", "-XX:MaxDirectMemorySize=1g")

Verb = Literal[
    "read", "read-nobody", "read-crc", "put", "put-mixed", "redispatch", "redispatch-paced"
]


@dataclass(frozen=True)
class Pass:
    """One timed pass. Warm-up passes are not reported."""

    verb: Verb
    number: int  # from 0
    messages: int
    seconds: float
    cpu_seconds: float  # of all threads of the JVM
    bytes: int  # of whole records
    append_seconds: float | None = None  # put only: until the last message was in the log

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds


def compile_bench() -> str:
    """Compile Bench.java if needed. Returns the class path to run it."""
    return class_path(SOURCE, RELEASE)


def run_bench(
    verb: Verb,
    store: Path,
    *,
    warmups: int = 5,
    passes: int = 5,
    messages: int = 200_000,
    body_bytes: int = 1024,
    settings: Conf | None = None,
    batch_topics: Sequence[str] = (),
    jvm: Sequence[str] = JVM,
) -> list[Pass]:
    """Run one verb. Returns its timed passes.

    `put` and `put-mixed` append `messages` in each pass, to a new store if there is none;
    `redispatch` deletes queues, index and checkpoint, and rebuilds them; `redispatch-paced` takes a
    millisecond for each record, so that each index file has a name of its own. `read` changes what a
    starting broker changes. So run it on a copy of any important store. `settings` are a broker's
    (`mappedFileSizeCommitLog`, ...); the sizes must be those that the store was written with.
    """
    arguments = [verb, str(store), str(warmups), str(passes)]
    if verb in ("put", "put-mixed"):
        arguments += [str(messages), str(body_bytes)]
    declared = [f"-DbatchTopics={','.join(batch_topics)}"] if batch_topics else []
    with tempfile.TemporaryDirectory() as home:  # RocketMQ logs below user.home
        options = [*jvm, *JVM_OPENS, f"-Duser.home={home}", *declared, *_properties(settings or {})]
        output = run([jdk_tool("java"), *options, "-cp", compile_bench(), "Bench", *arguments])
    return [_pass(json.loads(line)) for line in output.splitlines()]


def _properties(settings: Mapping[str, str | int | bool]) -> list[str]:
    return [f"-Dstore.{name}={java_value(value)}" for name, value in settings.items()]


def _pass(line: dict[str, Any]) -> Pass:
    return Pass(
        verb=line["verb"],
        number=line["pass"],
        messages=line["messages"],
        seconds=line["seconds"],
        cpu_seconds=line["cpuSeconds"],
        bytes=line["bytes"],
        append_seconds=line.get("appendSeconds"),
    )


def main() -> None:
    """Run one verb from the command line; prints JSON lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=get_args(Verb))
    parser.add_argument("store", type=Path)
    parser.add_argument("--warmups", type=int, default=5)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--messages", type=int, default=200_000, help="of one put pass")
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    chosen = parser.parse_args()
    for timed in run_bench(
        chosen.verb,
        chosen.store,
        warmups=chosen.warmups,
        passes=chosen.passes,
        messages=chosen.messages,
        body_bytes=chosen.body_bytes,
        settings=dict(setting.split("=", 1) for setting in chosen.set),
    ):
        print(json.dumps({**asdict(timed), "rate": round(timed.rate)}))


if __name__ == "__main__":
    main()
