"""Ports for a name server, a broker and its proxy."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import NamedTuple

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
    found: list[int] = []
    with ExitStack() as held:  # held until all are found: none is found twice
        while len(found) < count:
            port = _hold(held, 0)
            if port is not None and all(_hold(held, port + step) for step in NEIGHBOURS):
                found.append(port)
    return found


def _hold(held: ExitStack, port: int) -> int | None:
    listener = held.enter_context(socket.socket())
    try:
        listener.bind(("127.0.0.1", port))
    except (OSError, OverflowError):
        return None
    return int(listener.getsockname()[1])
