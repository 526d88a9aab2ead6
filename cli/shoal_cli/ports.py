"""Whether the router's address can be taken, and who reaches it: asked before anything is compiled or loaded."""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address

from shoal.errors import ResourceError, UsageError


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_port(host: str, port: int) -> None:
    """Raise ResourceError when `host:port` is taken or forbidden, UsageError when there is no such host here."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror:
        raise UsageError(f"{host!r} is not an address of this machine: use 127.0.0.1, or 0.0.0.0 for all") from None
    with socket.socket(family, kind, protocol) as probe:
        # As the router itself does it: a port that only waits for old connections to time out is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ResourceError(
                    f"port {port} on {host} is in use: stop what uses it, or choose another with --port"
                ) from None
            if error.errno == errno.EACCES:
                raise ResourceError(f"port {port} needs privileges: choose one above 1023 with --port") from None
            if error.errno == errno.EADDRNOTAVAIL:
                raise UsageError(f"{host!r} is not an address of this machine: use 127.0.0.1, or 0.0.0.0") from None
            raise
