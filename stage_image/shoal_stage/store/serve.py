"""A folder of model directories over HTTP: `/<digest>/<path>`, one range at a time, and `/healthz`.

Model directories are found by the digest of their manifest, whatever they are called. Only files that a manifest names
are served: nothing else of the disk can be asked for.
"""

from __future__ import annotations

import re
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from shoal.errors import ManifestError, ResourceError, UsageError
from shoal.manifest import MANIFEST_FILE, read_manifest

TIMEOUT_SECONDS: Final = 30.0
CHUNK: Final = 1 << 20
_RANGE: Final = re.compile(r"bytes=(\d+)-(\d*)")


class Shelf:
    """The model directories below a folder. One that appears later is found when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, tuple[Path, frozenset[str]]] = {}

    def find(self, digest: str, path: str) -> Path | None:
        """The file `path` of the model with that digest, None when there is none."""
        if digest not in self._known:
            self._look()
        found = self._known.get(digest)
        if found is None or path not in found[1]:
            return None
        file = found[0] / path
        return file if file.is_file() else None

    def _look(self) -> None:
        for directory in sorted(self._folder.glob("*")):
            if not (directory / MANIFEST_FILE).is_file():
                continue
            try:
                manifest = read_manifest(directory)
            except ManifestError:
                continue  # Not finished, or not of this version: it is as if it were not there.
            paths = {file.path for block in manifest.blocks for file in block.files}
            paths |= {file.path for file in manifest.tokenizer} | {MANIFEST_FILE}
            self._known[manifest.digest] = (directory, frozenset(paths))


class StoreServer:
    """Serves until `stop`; the port is taken when it is made."""

    def __init__(self, folder: Path, listen: str) -> None:
        host, _, port = listen.rpartition(":")
        if not host or not port.isdecimal():
            raise UsageError(f"argument --listen: {listen!r} is not HOST:PORT, such as 0.0.0.0:8080")
        try:
            self._server = ThreadingHTTPServer((host, int(port)), partial(_Handler, Shelf(folder)))
        except OSError as error:
            raise ResourceError(f"cannot listen on {listen}: {error.strerror}") from error
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def run(self) -> None:
        """Serve."""
        self._server.serve_forever(poll_interval=0.2)
        self._server.server_close()

    def stop(self) -> None:
        """End `run`; called from another thread."""
        self._server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    """One connection. A caller that reads nothing for too long is cut off."""

    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT_SECONDS

    def __init__(self, shelf: Shelf, *arguments: object) -> None:
        self._shelf = shelf
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """A file, or a part of it."""
        if self.path == "/healthz":
            self._say(HTTPStatus.OK, "alive")
            return
        digest, _, path = self.path.lstrip("/").partition("/")
        file = self._shelf.find(digest, path)
        if file is None:
            self._say(HTTPStatus.NOT_FOUND, "no such file of a model here")
            return
        size = file.stat().st_size
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        end = min(int(asked[2]) + 1, size) if asked and asked[2] else size
        if asked and start >= end:
            self._say(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "the range is beyond the file's end")
            return
        self.send_response(HTTPStatus.PARTIAL_CONTENT if asked else HTTPStatus.OK)
        self.send_header("Content-Length", str(end - start))
        self.send_header("Content-Type", "application/octet-stream")
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.end_headers()
        with file.open("rb") as stream:
            stream.seek(start)
            left = end - start
            while left and (data := stream.read(min(CHUNK, left))):
                self.wfile.write(data)
                left -= len(data)

    def log_message(self, format: str, *args: object) -> None:
        """Probes come every few seconds: nothing is logged."""

    def _say(self, status: HTTPStatus, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        """A caller that goes away is its own business."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True
