"""A road to the API server that a test can cut: connections break off, and new ones are refused, until it is mended."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Final, Self

_BUFFER: Final = 1 << 16
# On close the peer gets a reset at once, as when the machine between goes away.
_RESET: Final = struct.pack("ii", 1, 0)


class Relay:
    """Copies bytes between whoever connects to `port` and the target, while used as a context manager."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._is_cut = False
        self.refused = 0

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def cut(self) -> None:
        """Break off every connection, and refuse further ones."""
        with self._lock:
            self._is_cut = True
            self.refused = 0
            for each in self._open:
                _end(each)
            self._open.clear()

    def mend(self) -> None:
        """Let connections through again."""
        with self._lock:
            self._is_cut = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="relay", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._listener)
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        with self._lock:
            if self._is_cut:
                self.refused += 1
                _end(client)
                return
            server = socket.create_connection(self._target)
            self._open |= {client, server}
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=self._copy, args=(source, sink), name="relay", daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):  # one of the two went: so does the other
            while data := source.recv(_BUFFER):
                sink.sendall(data)
        with self._lock:
            for each in {source, sink} & self._open:
                _end(each)
            self._open -= {source, sink}


def _end(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        # A thread that waits in recv or accept is woken by this, and by a close alone it is not.
        each.shutdown(socket.SHUT_RDWR)
    each.close()
