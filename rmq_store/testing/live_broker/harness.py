"""A real Apache RocketMQ for tests: boot it on a store and read back with its own client.

Needs a JDK and, until the jars of a release are in the cache, Maven and a repository to fetch from.
`HarnessUnavailable` says what is missing; tests turn it into a skip. All listens on loopback, where
RocketMQ lets us choose, and every JVM ends with the process that started it.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, cast

from rmq_store.admin.retention import disk_used_percent
from rmq_store.testing.live_broker.broker_files import (
    BROKER_DEFAULTS,
    DISK_GUARD,
    FULL_PERCENT,
    BrokerFiles,
    Conf,
    Ports,
    TopicFields,
    copy_store,
    declare_topics,
    free_ports,
    topics_on_disk,
)
from rmq_store.testing.live_broker.java import (
    HERE,
    JVM_OPENS,
    CommandFailed,
    class_path,
    jdk_tool,
    run,
)

# A quick start matters more here than speed after an hour: one collector, the quick compiler only.
JVM_SMALL = (
    "-Xms64m",
    "-Xmx512m",
    "-XX:MaxDirectMemorySize=256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
)


_PATIENCE = 120.0  # seconds to start, or to stop


class BrokerFailed(RuntimeError):
    """A broker or its client ended, or kept silent; the message carries the end of its output."""


class Row(TypedDict):
    """One message as the client handed it over. Names as in the golden stores' truth.jsonl."""

    topic: str
    queueId: int
    queueOffset: int
    commitLogOffset: int
    storeSize: int
    bodyCrc: int
    flag: int
    sysFlag: int
    bornTimestamp: int
    bornHost: str
    storeTimestamp: int
    storeHost: str
    reconsumeTimes: int
    preparedTransactionOffset: int
    msgId: str | None
    offsetMsgId: str | None
    foundBy: str | None  # the key that was asked for
    properties: dict[str, str]
    body: str  # base64; the client has inflated a compressed body


class Broker:
    """Name server and broker of one release in one JVM; with `proxy` the gRPC proxy too (5.x).

    A context manager. Leaving it kills the JVM: that is instant and loses nothing that was
    acknowledged. Call `stop` before, where a cleanly closed store is the point.
    """

    def __init__(
        self,
        release: str,
        work: Path,
        *,
        store: Path | None = None,
        conf: Conf | None = None,
        topics: Mapping[str, TopicFields] | None = None,
        proxy: bool = False,
        proxy_conf: Conf | None = None,
        tls: bool = False,
    ) -> None:
        """`work` takes configuration and logs; the broker writes to `store` (`work/store`).

        `conf` overrides BROKER_DEFAULTS; `{store}` in a value becomes the store's folder. `topics`
        are declared before the start: a name and what differs from four readable queues.
        `proxy_conf` overrides the proxy's settings. With `tls` nothing in the JVM answers without
        TLS; `certificate` signs the proxy's.
        """
        self.release = release
        self.work = work.resolve()
        self.store = (store or work / "store").resolve()
        self.conf: Conf = {**BROKER_DEFAULTS, **(conf or {})}
        self.proxy = proxy
        self.proxy_conf: Conf = proxy_conf or {}
        self.tls = tls
        self.ports = Ports(0, 0, 0, 0)
        self._output = self.work / "broker.out"
        self.process: subprocess.Popen[bytes] | None = None
        self._pump: threading.Thread | None = None
        if topics:
            declare_topics(self.store, topics)

    @property
    def namesrv(self) -> str:
        """What a client takes as its name server."""
        return self.ports.namesrv_address

    @property
    def address(self) -> str:
        """The broker itself, remoting protocol."""
        return f"127.0.0.1:{self.ports.broker}"

    @property
    def grpc(self) -> str:
        """The proxy, for gRPC clients."""
        return f"127.0.0.1:{self.ports.grpc}"

    @property
    def certificate(self) -> Path:
        """The certificate of the proxy, signed by itself, in PEM."""
        return self.work / "proxy.crt"

    @property
    def running(self) -> bool:
        """Whether the JVM lives."""
        return self.process is not None and self.process.poll() is None

    def last_words(self) -> str:
        """The end of what the JVM printed, and the warnings in the broker's own logs."""
        logs = sorted((self.work / "logs").rglob("*.log"))
        lines = [line for log in logs for line in _lines(log) if _is_warning(line)]
        printed = [line for line in _lines(self._output) if "|-INFO" not in line]
        return "\n".join([*printed[-30:], *lines[-30:]])

    def start(self, tries: int = 2) -> Broker:
        """Start, and return once a client can find every topic.

        Tried twice, because a port that was free may be taken by the time it is opened. But a broker that
        does not start with its files may change them as it ends. Warns if the disk is so full that the
        broker refuses messages.
        """
        self._warn_of_full_disk()
        for left in reversed(range(tries)):
            try:
                self._start_once()
                break
            except BrokerFailed:
                if not left:
                    raise
        return self

    def start_again(self) -> Broker:
        """Start where clients look for it: on the ports it had before it was stopped or killed."""
        self._start_once(self.ports)
        return self

    def stop(self) -> None:
        """Stop as an operator would: all is flushed, `abort` is gone. Takes 5 to 16 s."""
        if self.process is not None and self.running:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(_PATIENCE)
            except subprocess.TimeoutExpired as silence:
                self.kill()
                waited = f"no end within {_PATIENCE} s"
                raise BrokerFailed(f"{waited}\n{self.last_words()}") from silence
        self._reap()

    def kill(self) -> None:
        """End it like a crash: `abort` stays."""
        if self.process is not None and self.running:
            self.process.kill()
        self._reap()

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _warn_of_full_disk(self) -> None:
        self.store.mkdir(parents=True, exist_ok=True)
        used = disk_used_percent(self.store)
        if used > FULL_PERCENT:
            warnings.warn(
                f"the disk of {self.store} is {used} % full: above {FULL_PERCENT} % a broker refuses "
                "messages, and leaves the file abort behind when it stops",
                stacklevel=3,
            )

    def _start_once(self, ports: Ports | None = None) -> None:
        self.ports = ports or Ports(*free_ports(len(Ports._fields)))
        BrokerFiles(
            self.work, self.store, self.conf, self.ports, self.proxy, self.proxy_conf
        ).write()
        ready = threading.Event()
        # Nobody writes to the JVM's input: it ends with this process, and Live ends with it.
        self.process = subprocess.Popen(
            self._command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment(),
            cwd=self.work,
        )
        atexit.register(self.kill)
        self._pump = threading.Thread(target=self._pump_output, args=(ready,), daemon=True)
        self._pump.start()
        if not ready.wait(_PATIENCE) or not self.running:
            self.kill()
            raise BrokerFailed(f"the broker of {self.release} did not start\n{self.last_words()}")

    def _pump_output(self, ready: threading.Event) -> None:
        """Keep what the JVM prints; end the waiting when it is ready, or dead."""
        assert self.process is not None
        assert self.process.stdout is not None
        with self._output.open("ab", buffering=0) as kept:
            for line in self.process.stdout:
                kept.write(line)
                if line.strip() == b"LIVE-READY":
                    ready.set()
        self.process.wait()
        ready.set()

    def _reap(self) -> None:
        if self.process is None:
            return
        self.process.wait()
        if self._pump is not None:
            self._pump.join()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process = None
        atexit.unregister(self.kill)

    def _environment(self) -> dict[str, str]:
        environment = {**os.environ, "ROCKETMQ_HOME": str(self.work)}
        environment["RMQ_PROXY_HOME"] = str(self.work)
        environment.pop("NAMESRV_ADDR", None)  # it would win over the file
        return environment

    def _command(self) -> list[str]:
        return [
            *java_command(self, HERE / "Live.java", *JVM_OPENS, f"-Drocketmq.home.dir={self.work}"),
            str(self.work / "namesrv.conf"),
            self.namesrv,
            self.address,
            *self._main(),
        ]

    def _main(self) -> list[str]:
        if self.proxy:
            conf = str(self.work / "conf/rmq-proxy.json")
            return ["org.apache.rocketmq.proxy.ProxyStartup", "-pm", "local", "-pc", conf]
        return ["org.apache.rocketmq.broker.BrokerStartup", "-c", str(self.work / "broker.conf")]


def boot_copy(
    store: Path,
    work: Path,
    release: str,
    conf: Conf | None = None,
    *,
    topics: Mapping[str, TopicFields] | None = None,
    proxy: bool = False,
) -> Broker:
    """A broker, not started yet, on a copy of `store` in `work/store`. The original is only read.

    `conf` must repeat the sizes that the files were written with (see `sizes_of`): no file
    records them, and a broker refuses or misreads files of another size. No file is ever deleted
    for its age or for lack of space.

    Every queue on disk is declared, and readable, in the copy, whatever the store's config says: a
    client may not read dead letters, for instance. `topics` are for queues that are not on disk
    yet, because the broker is to make them from the log.
    """
    copy = work / "store"
    copy_store(store, copy)
    declared = {**topics_on_disk(copy), **(topics or {})}
    settings = {**(conf or {}), **DISK_GUARD}
    return Broker(release, work, store=copy, conf=settings, topics=declared, proxy=proxy)


def read_all(broker: Broker, topics: Iterable[str]) -> list[Row]:
    """Every message of every queue of these topics, in the order topic, queue, offset."""
    return ask_reader(broker, ["all"], topics)


def ask_reader(broker: Broker, arguments: Sequence[str], lines: Iterable[str]) -> list[Row]:
    """What Reader.java answers to these arguments and lines of input."""
    options = [*JVM_OPENS, "-Drocketmq.client.logUseSlf4j=false"]
    command = [*java_command(broker, HERE / "Reader.java", *options), broker.namesrv, *arguments]
    try:
        output = run(command, text="".join(f"{line}\n" for line in lines))
    except CommandFailed as failure:
        raise BrokerFailed(f"{failure}\n{broker.last_words()}") from failure
    answers = [json.loads(line) for line in output.splitlines()]
    if not answers or answers[-1] != {"done": len(answers) - 1}:
        raise BrokerFailed(f"the reader's answer is cut off\n{broker.last_words()}")
    return cast("list[Row]", answers[:-1])


def java_command(broker: Broker, source: Path, *options: str) -> list[str]:
    """The beginning of a command that runs a class, given by its source, with a broker's release."""
    logs = [f"-Duser.home={broker.work}", f"-Drocketmq.log.root.dir={broker.work}/logs"]
    path = class_path(source, broker.release, proxy=broker.proxy)
    mode = "enforcing" if broker.tls else "disabled"
    tls = [f"-Dtls.server.mode={mode}", f"-Dtls.enable={str(broker.tls).lower()}"]
    return [jdk_tool("java"), *JVM_SMALL, *options, *logs, *tls, "-cp", path, source.stem]


def _lines(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines() if log.exists() else []


def _is_warning(line: str) -> bool:
    return " WARN " in line or " ERROR " in line
