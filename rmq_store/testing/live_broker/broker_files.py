"""The files that a name server, a broker and its proxy are started with, and the stores that they open."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from rmq_store.store import MessageStore

Conf = Mapping[str, str | int | bool]  # settings of a broker
TopicFields = Mapping[str, Any]  # some fields of a TopicConfig, as in config/topics.json

# Another process's lock means nothing in a copy. The wheel (38 MB) and the empty database that 5.4
# and later keep beside the files are created again; golden stores have only a part of the latter.
NOT_COPIED = shutil.ignore_patterns("lock", "timerwheel", "rocksdbstore")
# Only the attribute shows a broker which of the two folders holds a topic's queues; when they
# disagree it does not start.
QUEUE_FOLDERS: dict[str, TopicFields] = {
    "consumequeue": {},
    "batchconsumequeue": {"attributes": {"queue.type": "BatchCQ"}},
}


def sizes_of(store: Path) -> dict[str, str | int | bool]:
    """The file sizes of a store, as settings: a broker refuses or misreads files of other sizes."""
    with MessageStore.open(store) as opened:
        return {name: size for name, size in asdict(opened.geometry()).items() if size}


def copy_store(store: Path, copy: Path) -> None:
    """Copy a store; holes stay holes, so that files of 1 GiB cost what was written to them."""
    shutil.copytree(store, copy, ignore=NOT_COPIED, copy_function=_copy_sparse)
    for path in (copy, *copy.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)  # the original may be read-only


def _copy_sparse(source: str, target: str) -> str:
    with Path(source).open("rb") as old, Path(target).open("wb") as new:
        size = os.fstat(old.fileno()).st_size
        new.truncate(size)
        for start, stop in _extents(old, size):
            old.seek(start)
            new.seek(start)
            while (left := stop - old.tell()) > 0:
                new.write(old.read(min(left, 1 << 20)))
    shutil.copystat(source, target)  # 4.x brokers look at the age of queue files
    return target


def _extents(file: IO[bytes], size: int) -> Iterator[tuple[int, int]]:
    """Where a file has data: half-open ranges."""
    stop = 0
    while stop < size:
        try:
            start = os.lseek(file.fileno(), stop, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole is left
            return
        stop = os.lseek(file.fileno(), start, os.SEEK_HOLE)
        yield start, stop


def topics_on_disk(store: Path) -> dict[str, TopicFields]:
    """Topics that have queues in a store, as `declare_topics` takes them."""
    topics: dict[str, TopicFields] = {}
    for kind, extra in QUEUE_FOLDERS.items():
        for topic in sorted((store / kind).glob("*")):
            queues = [int(queue.name) for queue in topic.glob("*") if queue.name.isdecimal()]
            if queues:
                count = max(queues) + 1
                topics[topic.name] = {"readQueueNums": count, "writeQueueNums": count, **extra}
    return topics


def declare_topics(store: Path, topics: Mapping[str, TopicFields]) -> None:
    """Put topics into config/topics.json, which a broker reads when it starts; all readable."""
    path = store / "config/topics.json"
    stored: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    stored.setdefault("dataVersion", {"counter": 1, "timestamp": 1})
    table = stored.setdefault("topicConfigTable", {})
    for name, fields in topics.items():
        fresh = {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4}
        table[name] = {**fresh, **table.get(name, {}), **fields, "perm": 6}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(stored))


# Percent of the disk. Above it a broker refuses messages; that cannot be set higher.
FULL_PERCENT = 90
# A copied store is old and the disk of a test machine may be full: neither may make the broker
# delete files.
DISK_GUARD: Conf = {
    "diskMaxUsedSpaceRatio": 95,
    "diskSpaceCleanForciblyRatio": 85,
    "diskSpaceWarningLevelRatio": FULL_PERCENT,
    "cleanFileForciblyEnable": False,
    "fileReservedTime": 100_000,
}
BROKER_DEFAULTS: Conf = {
    **DISK_GUARD,
    "brokerClusterName": "rmqstore-tests",
    "brokerName": "broker-a",
    "brokerId": 0,
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "mappedFileSizeCommitLog": 8 << 20,
    "mappedFileSizeConsumeQueue": 120_000,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
    "mappedFileSizeTimerLog": 1 << 20,
    "autoCreateTopicEnable": True,
    "autoCreateSubscriptionGroup": True,
    "traceTopicEnable": False,
    # Open half messages of a copied store stay as they are.
    "transactionTimeOut": 86_400_000,
    "transactionCheckInterval": 86_400_000,
    # Reading back 100,000 messages 8 or 32 at a time is slow. An answer must stay below 16 MiB.
    "maxTransferCountOnMessageInMemory": 1024,
    "maxTransferCountOnMessageInDisk": 1024,
    "maxTransferBytesOnMessageInMemory": 4 << 20,
    "maxTransferBytesOnMessageInDisk": 4 << 20,
    "maxMsgsNumBatch": 1024,
}
# Old releases spell it `maped`; a broker ignores names that it does not know.
OLD_SPELLINGS = {
    "mappedFileSizeCommitLog": "mapedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue": "mapedFileSizeConsumeQueue",
}
# 4.x does not start without its logback files.
LOGBACK_FILES = (
    "logback_namesrv.xml",
    "logback_broker.xml",
    "rmq.namesrv.logback.xml",
    "rmq.broker.logback.xml",
)
LOGBACK = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %-5p %c - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


@dataclass(frozen=True, slots=True)
class BrokerFiles:
    """Configuration in the folder `work` for one start, which listens on `ports`."""

    work: Path
    store: Path
    conf: Conf
    ports: Ports
    proxy: bool
    proxy_conf: Conf

    def write(self) -> None:
        """Write every file again: ports differ from start to start, and a broker rewrites its file."""
        (self.work / "conf").mkdir(parents=True, exist_ok=True)
        for name in LOGBACK_FILES:
            (self.work / "conf" / name).write_text(LOGBACK)
        self._write_conf("namesrv.conf", self._namesrv_conf())
        self._write_conf("broker.conf", self._broker_conf())
        if self.proxy:
            proxy = json.dumps({**self._proxy_conf(), **self._certificate(), **self.proxy_conf})
            (self.work / "conf/rmq-proxy.json").write_text(proxy)

    def _namesrv_conf(self) -> Conf:
        return {
            "listenPort": self.ports.namesrv,
            "bindAddress": "127.0.0.1",
            "kvConfigPath": f"{self.work}/namesrv/kvConfig.json",
            "configStorePath": f"{self.work}/namesrv/namesrv.properties",
        }

    def _broker_conf(self) -> Conf:
        conf: dict[str, str | int | bool] = {
            "storePathRootDir": "{store}",
            "storePathCommitLog": "{store}/commitlog",
            **self.conf,
            "listenPort": self.ports.broker,
            "haListenPort": self.ports.broker + 1,
            "namesrvAddr": self.ports.namesrv_address,
        }
        conf.update({old: conf[new] for new, old in OLD_SPELLINGS.items()})
        return conf

    def _write_conf(self, file: str, conf: Conf) -> None:
        """Write settings; `{store}` in a value becomes the store's folder."""
        lines = (f"{name}={java_value(value)}\n" for name, value in conf.items())
        (self.work / file).write_text("".join(lines).replace("{store}", str(self.store)))

    def _proxy_conf(self) -> dict[str, object]:
        return {
            "rocketMQClusterName": self.conf["brokerClusterName"],
            "namesrvAddr": self.ports.namesrv_address,
            "proxyMode": "LOCAL",
            "grpcServerPort": self.ports.grpc,
            "remotingListenPort": self.ports.remoting,
            "localServeAddr": "127.0.0.1",
            "brokerConfigPath": str(self.work / "broker.conf"),
            "grpcShutdownTimeSeconds": 1,
            "enablePrintJstack": False,
        }

    def _certificate(self) -> dict[str, object]:
        key, certificate = self.work / "proxy.key", self.work / "proxy.crt"
        if not certificate.exists():
            write_certificate(certificate, key)
        return {"tlsTestModeEnable": False, "tlsKeyPath": str(key), "tlsCertPath": str(certificate)}


def java_value(value: str | int | bool) -> str:
    """As Java reads it from a properties file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


# Besides its port, a broker opens the one two below (fast remoting) and the next (replication).
NEIGHBOURS = (-2, 1)


class Ports(NamedTuple):
    """What one start listens on."""

    namesrv: int
    broker: int
    grpc: int
    remoting: int

    @property
    def namesrv_address(self) -> str:
        """What a broker or a client takes as its name server."""
        return f"127.0.0.1:{self.namesrv}"


def free_ports(count: int) -> list[int]:
    """Free ports whose neighbours, which a broker opens as well, are free too."""
    ports: list[int] = []
    with ExitStack() as held:  # held until all are found: none is found twice
        while len(ports) < count:
            port = _hold(held, 0)
            if port is not None and all(_hold(held, port + step) for step in NEIGHBOURS):
                ports.append(port)
    return ports


def _hold(held: ExitStack, port: int) -> int | None:
    listener = held.enter_context(socket.socket())
    try:
        listener.bind(("127.0.0.1", port))
    except (OSError, OverflowError):
        return None
    return int(listener.getsockname()[1])


def write_certificate(certificate: Path, key: Path) -> None:
    """Write a certificate that signs itself for localhost and 127.0.0.1, and its key, as PEM."""
    own = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    now = datetime.now(timezone.utc)
    signed = (
        x509.CertificateBuilder(name, name, own.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(own, SHA256())
    )
    # Netty reads keys in PKCS 8 alone.
    raw = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    key.write_bytes(raw)
    certificate.write_bytes(signed.public_bytes(Encoding.PEM))
