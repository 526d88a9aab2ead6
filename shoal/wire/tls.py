"""Mutual TLS of the hops: credentials from a directory that is replaced while the process runs.

The directory is what Kubernetes mounts of a TLS Secret: `ca.crt` (who may be on the other side), `tls.crt` and
`tls.key`. A server reads it anew for every handshake, a client for every channel, that is for every epoch: a renewed
certificate needs no restart, and a connection that is open lives on.

A certificate names its holder's role by a SPIFFE id, `spiffe://<domain>/ns/<namespace>/shoal/<model>/<role>`: who opens
a pipeline and reads its results must be the router. Without a directory the hops are plain, as on one machine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from shoal.errors import ResourceError

AUTHORITY_FILE: Final = "ca.crt"
CERTIFICATE_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"
_FILES: Final = (AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE)
ROUTER: Final = "router"
STAGE: Final = "stage"

_CURRENT: Final = "..data"
"""The link that a kubelet turns to the new files in one move."""
_ATTEMPTS: Final = 3

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """One certificate with its key, and the authority of both sides, as PEM."""

    authority: bytes
    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class TlsDirectory:
    """Where the files lie."""

    path: Path

    def read(self) -> TlsFiles:
        """The files as they are now, all of one generation. Raises ResourceError when one is missing."""
        for attempt in range(_ATTEMPTS):
            # Through the link, once: the three names may point to two generations while they are read.
            folder = (self.path / _CURRENT).resolve() if (self.path / _CURRENT).exists() else self.path
            try:
                return TlsFiles(*((folder / name).read_bytes() for name in _FILES))
            except OSError as error:
                # The generation that was being read was just removed.
                if attempt + 1 == _ATTEMPTS or folder == self.path:
                    raise ResourceError(
                        f"the TLS directory {self.path} cannot be used: {error.filename}: {error.strerror}"
                    ) from error
        raise AssertionError("unreachable")

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For one channel; it keeps them for its life. Raises ResourceError."""
        files = self.read()
        return grpc.ssl_channel_credentials(files.authority, files.key, files.certificate)

    def server_credentials(self, handshake: Callable[[], None] = lambda: None) -> grpc.ServerCredentials:
        """For a server: nobody without a certificate of the authority gets in. Raises ResourceError.

        `handshake` is called when one begins, on a thread of gRPC's.
        """
        first = self.read()
        return grpc.dynamic_ssl_server_credentials(
            _configuration(first),
            _Reload(self, first, handshake).fetch,  # type: ignore[arg-type]  # None keeps the last one, which the stubs do not know
            require_client_authentication=True,
        )


class _Reload:
    """What gRPC asks at every handshake: a new configuration, or None for the one that it has."""

    def __init__(self, directory: TlsDirectory, files: TlsFiles, handshake: Callable[[], None]) -> None:
        self._directory = directory
        self._files = files
        self._handshake = handshake

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Runs on a thread of gRPC's."""
        self._handshake()
        try:
            files = self._directory.read()
        except ResourceError as error:
            _log.warning("the last certificate stays in use: %s", error)
            return None
        if files == self._files:
            return None
        self._files = files
        _log.info("the certificate was renewed")
        return _configuration(files)


def _configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(files.key, files.certificate)], files.authority)


def role_of(identity: Mapping[str, Iterable[bytes]]) -> str | None:
    """The role in the caller's certificate, of what a servicer's `auth_context()` gives; None without one."""
    ids = [bytes(each).decode("utf-8", "replace") for each in identity.get("peer_spiffe_id", ())]
    return ids[0].rpartition("/")[2] if len(ids) == 1 else None
