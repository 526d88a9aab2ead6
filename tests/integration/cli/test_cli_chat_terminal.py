"""`shoal chat` on a real terminal: Ctrl-C stops the answer and not the program, and the router learns of it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class EndlessRouter(ThreadingHTTPServer):
    """Streams words until the client leaves, which it tells by `left`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Endpoint)
        self.left = threading.Event()
        self.stopping = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Endpoint(BaseHTTPRequestHandler):
    server: EndlessRouter

    def do_GET(self) -> None:
        self._head("application/json")
        self.wfile.write(json.dumps({"data": [{"id": "smollm2"}]}).encode())

    def do_POST(self) -> None:
        self._head("text/event-stream")
        chunk = json.dumps({"choices": [{"delta": {"content": "word "}}]})
        try:
            while not self.server.stopping.wait(0.01):
                self.wfile.write(f"data: {chunk}\n\n".encode())
        except (BrokenPipeError, ConnectionResetError):
            self.server.left.set()

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def _head(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()


@pytest.fixture
def router() -> Iterator[EndlessRouter]:
    with EndlessRouter() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.stopping.set()
        server.shutdown()
        thread.join()


class Terminal:
    """`shoal chat` with a terminal of its own, as its controlling terminal: a typed Ctrl-C becomes SIGINT."""

    def __init__(self, url: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(sys.executable, [sys.executable, "-P", "-m", "shoal_cli.main", "chat", "--url", url])
        self.seen = ""

    def until(self, text: str) -> None:
        """Read until `text` has come; what was read is behind us then."""
        while text not in self.seen:
            read = os.read(self.fd, 4096).decode(errors="replace")
            assert read, f"the terminal was closed: {self.seen!r}"
            self.seen += read
        self.seen = self.seen.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def end(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_ctrl_c_stops_the_answer_and_the_next_message_is_answered(router: EndlessRouter) -> None:
    terminal = Terminal(router.url)
    terminal.until("smollm2 at http://127.0.0.1")
    for _ in range(2):
        terminal.until("> ")
        terminal.type("Tell me something\n")
        terminal.until("word word ")
        terminal.type("\x03")
        terminal.until("[stopped]")
        assert router.left.wait(30)
        router.left.clear()
    terminal.until("> ")
    terminal.type("\x03")
    terminal.until("/exit (or Ctrl-D) leaves")
    # Before the next prompt the terminal is still in line mode: a Ctrl-D typed there would get lost in the change to
    # readline's own.
    terminal.until("> ")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_ctrl_c_in_a_pipe_ends_the_program(router: EndlessRouter) -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "shoal_cli.main", "chat", "--url", router.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("Tell me something\n")
        process.stdin.flush()
        assert process.stdout.read(4) == "word"
        process.send_signal(signal.SIGINT)
        assert router.left.wait(30)
        assert process.stdout.read().endswith("[stopped]\n")
    assert process.returncode == 130
