"""What a sender needs besides the address of a broker: TLS, and the credentials of a user."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rmq_store.errors import InvalidArgumentError, OsErrorsOf
from rmqstore_jobs.replay_targets.retrying_sender import Denied
from rmqstore_jobs.replaying.replay_spec import ReplaySpec
from spark_source.options.secret import Secret, reveal

ACCESS_KEY, SECRET_KEY = "RMQSTORE_ACCESS_KEY", "RMQSTORE_SECRET_KEY"
"""Environment variables of the driver. Options would be visible in the list of processes."""

_ROOTS = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"  # read by gRPC once in a process
_TRUSTED: list[bytes] = []  # what it read there; b"" for its own
_NONE = Secret("")


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """Travels from the driver to the executors. Prints no credentials.

    `roots`: the certificates, in PEM, that sign the broker's; None for those that gRPC brings along.
    """

    tls: bool = False
    roots: bytes | None = None
    access_key: Secret = _NONE
    secret_key: Secret = _NONE

    @classmethod
    def of(cls, spec: ReplaySpec) -> BrokerAccess:
        """The access that a spec and the environment give.

        Raises InvalidArgumentError if only one half of the credentials is set, and MissingFileError
        or AccessError for a file of certificates that cannot be read.
        """
        keys = [os.environ.get(name, "") for name in (ACCESS_KEY, SECRET_KEY)]
        if any(keys) and not all(keys):
            raise InvalidArgumentError(
                reason="the environment has one half of the broker's credentials",
                expected=f"{ACCESS_KEY} and {SECRET_KEY}, or neither",
            )
        return cls(spec.tls, _certificates(spec.tls_ca), Secret(keys[0]), Secret(keys[1]))

    @property
    def credentials(self) -> tuple[str, str]:
        """Access key and secret key themselves; empty without credentials."""
        return reveal(self.access_key), reveal(self.secret_key)

    @property
    def has_credentials(self) -> bool:
        """Whether requests are signed with credentials."""
        return any(self.credentials)

    def hidden(self, text: str) -> str:
        """The text of somebody else's error without the credentials."""
        for value in self.credentials:
            text = text.replace(value, "***") if value else text
        return text

    def trust(self) -> None:
        """Make gRPC trust only `roots` in this process, before its first connection.

        The official client takes no certificates of its own. Raises Denied if this process trusts
        others already, because gRPC looks only once.
        """
        wanted = self.roots or b""
        if not self.tls or wanted in _TRUSTED:
            return
        if _TRUSTED:
            raise Denied(
                "this process trusts other certificates already; replay to a broker of another CA "
                "in another process"
            )
        if wanted:
            folder = Path(tempfile.mkdtemp(prefix="rmqstore-roots-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            path = folder / "roots.pem"
            path.write_bytes(wanted)
            os.environ[_ROOTS] = str(path)
        _TRUSTED.append(wanted)


def _certificates(path: str | None) -> bytes | None:
    if path is None:
        return None
    with OsErrorsOf(path, "reading --tls-ca"):
        raw = Path(path).read_bytes()
    if b"-----BEGIN CERTIFICATE-----" not in raw:
        raise InvalidArgumentError(
            path, reason="--tls-ca has no certificate", expected="certificates in PEM"
        )
    return raw
