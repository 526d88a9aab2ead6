"""TLS of the API's own port: certificate and key from a directory that is replaced while the router runs.

The directory is what Kubernetes mounts of a TLS Secret: `tls.crt` and `tls.key`. New files are taken into the context
that the server already has, so the next handshake uses them; connections and streams that are open are not touched.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Final

from shoal.errors import ResourceError
from shoal.wire.tls import CERTIFICATE_FILE, KEY_FILE

LOOK_SECONDS: Final = 5.0
"""How often the files are looked at; a kubelet takes up to a minute to bring a renewed Secret anyway."""

log = logging.getLogger(__name__)


class ServerCertificate:
    """Invariant: `context` always holds a certificate and its key; a pair that does not fit leaves the last in use."""

    def __init__(self, directory: Path) -> None:
        """Raises ResourceError when the files cannot be used."""
        self._certificate, self._key = directory / CERTIFICATE_FILE, directory / KEY_FILE
        self.context = _context()
        self._files = self._read()
        self._load(self.context)

    def renew(self) -> bool:
        """Take new files into use, if there are any. Raises ResourceError and changes nothing when they do not fit."""
        files = self._read()
        if files == self._files:
            return False
        self._load(_context())  # a half that does not fit the other must not get into the one in use
        self._load(self.context)
        self._files = files
        return True

    async def keep_new(self, look_seconds: float = LOOK_SECONDS) -> None:
        """Look at the files now and then, until cancelled."""
        said = ""
        while True:
            await asyncio.sleep(look_seconds)
            try:
                if self.renew():
                    log.info("the API's certificate was renewed")
                said = ""
            except ResourceError as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("the last certificate stays in use: %s", error)

    def _read(self) -> tuple[bytes, bytes]:
        try:
            return self._certificate.read_bytes(), self._key.read_bytes()
        except OSError as error:
            raise ResourceError(f"the API's TLS files cannot be read: {error.filename}: {error.strerror}") from error

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self._certificate, self._key)
        except (ssl.SSLError, OSError) as error:
            raise ResourceError(
                f"{self._certificate} and {self._key} are no certificate with its key: {error.args[-1]}"
            ) from error


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
