"""An S3 server on loopback, and a way to it on which every answer takes its time."""

from __future__ import annotations

import logging
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep
from typing import Any

import pyarrow.fs as pafs

SECRET = "a-secret-that-must-not-show"


@contextmanager
def s3_server() -> Iterator[dict[str, Any]]:
    """A server with the empty bucket `stores`; gives the options that a client needs."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        options = client_options(host, port)
        file_system(options).create_dir("stores")
        yield options
    finally:
        server.stop()


def client_options(host: str, port: int) -> dict[str, str]:
    """The options that a client of a server on that port needs."""
    return {
        "endpoint_override": f"{host}:{port}",
        "scheme": "http",
        "access_key": "somebody",
        "secret_key": SECRET,
        "region": "us-east-1",
        "allow_bucket_creation": "true",
    }


def file_system(options: dict[str, str]) -> Any:
    """The server as a file system, to write to."""
    return pafs.S3FileSystem(**{**options, "allow_bucket_creation": True})


def upload(options: dict[str, str], folder: str, name: str) -> str:
    """Put a store's folder to s3://stores/NAME; gives that address."""
    pafs.copy_files(
        folder,
        f"stores/{name}",
        source_filesystem=pafs.LocalFileSystem(),
        destination_filesystem=file_system(options),
    )
    return f"s3://stores/{name}"


class FarAway:
    """A proxy that holds each answer back for `delay` seconds, and counts what is under way."""

    def __init__(self, options: dict[str, str], delay: float) -> None:
        host, port = options["endpoint_override"].split(":")
        self._there = (host, int(port))
        self._delay = delay
        self._lock = threading.Lock()
        self._under_way = 0
        self.answers = 0
        self.most_at_once = 0
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.options = {**options, **_at(self._listening.getsockname())}
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listening.close()

    def __enter__(self) -> FarAway:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def reset(self) -> None:
        """Count from here on."""
        with self._lock:
            self.answers = self.most_at_once = 0

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        asked = False
        with client, socket.create_connection(self._there) as server:
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                for one in select.select([client, server], [], [])[0]:
                    data = one.recv(1 << 20)
                    if one is client and data and not asked:
                        asked = True
                        self._count(1)
                    if one is server and asked:
                        sleep(self._delay)
                        asked = False
                        self._count(-1)
                    if not data:
                        return
                    try:
                        (server if one is client else client).sendall(data)
                    except OSError:  # who asked has gone
                        return

    def _count(self, change: int) -> None:
        with self._lock:
            self._under_way += change
            self.answers += change < 0
            self.most_at_once = max(self.most_at_once, self._under_way)


def _at(address: tuple[str, int]) -> dict[str, str]:
    return {"endpoint_override": f"{address[0]}:{address[1]}"}
