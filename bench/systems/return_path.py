"""Two stages with a link between them: what comes back from the last one, the chosen id or all its logits.

    python -m bench.systems.return_path MODEL_DIR

    first stage ──hidden state──> relay ──> last stage
    <── 8 bytes, or 4 for each id of the vocabulary ── relay <──

shoal's stages never send logits, so this is a pipeline of its own: two engines in one process that talk over a socket
through bench.relay, one token at a time.

Requests: {"prompts": [ids], "tokens": n, "vocabulary": v, "delay_ms": d, "mb_per_s": b} -> {"seconds", "answers",
"bytes_back"}. `vocabulary` 0 sends the id; otherwise that many logits come back, the model's own first. The link has
the delay and the bandwidth each way.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import threading
import time
from math import inf
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.link import Link
from bench.relay import Relay
from bench.systems.cut import cut_blocks
from bench.workers import Message, answer
from shoal.manifest import read_manifest
from shoal.wire.messages import Row
from shoal_stage.engine.interface import Engine
from shoal_stage.engine.open import open_engine
from shoal_stage.engine.settings import EngineKind, EngineSettings

_HEADER = struct.Struct("<iii")
"""Past length, number of ids, size of the vocabulary that is sent back (0: the id alone)."""

_ID = struct.Struct("<q")
_DEADLINE_SECONDS = 60.0
_SEQUENCE = 1


class ReturnPath:
    """The first stage, and the link to the last."""

    def __init__(self, directory: Path) -> None:
        manifest = read_manifest(directory)
        settings = EngineSettings(sequences=1, threads=1)
        self._width = manifest.shape.hidden_size
        self._first, self._last = (
            open_engine(EngineKind.PAGED, directory, manifest, start, end, settings)
            for start, end in cut_blocks(manifest, 2)
        )
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, args=(listener,), daemon=True).start()
        self._relay = Relay(f"127.0.0.1:{listener.getsockname()[1]}")
        asyncio.run_coroutine_threadsafe(self._relay.__aenter__(), self._loop).result(10)
        host, _, port = self._relay.address.rpartition(":")
        self._socket = _prompt(socket.create_connection((host, int(port)), _DEADLINE_SECONDS))

    def generate(self, request: Message) -> Message:
        """Greedy decode of one prompt."""
        asyncio.run_coroutine_threadsafe(self._shape(request), self._loop).result(10)
        self._first.release([_SEQUENCE])
        (prompt,) = request["prompts"]
        back = self._relay.traffic.back
        begun = time.perf_counter()
        ids = [self._step(prompt, 0, request["vocabulary"])]
        while len(ids) < request["tokens"]:
            ids.append(self._step(ids[-1:], len(prompt) + len(ids) - 1, request["vocabulary"]))
        seconds = time.perf_counter() - begun
        return {"seconds": seconds, "answers": [ids], "bytes_back": self._relay.traffic.back - back}

    async def _shape(self, request: Message) -> None:
        rate = request.get("mb_per_s", 0.0) * 1e6 or inf
        self._relay.link = Link(delay=request.get("delay_ms", 0.0) / 1000, bytes_per_second=rate)

    def _step(self, tokens: list[int], past: int, vocabulary: int) -> int:
        hidden = self._first.run([_row(self._first, past, tokens)], None)
        self._socket.sendall(_HEADER.pack(past, len(tokens), vocabulary) + hidden.tobytes())
        if vocabulary:
            return int(np.frombuffer(_receive(self._socket, 4 * vocabulary), np.float32).argmax())
        chosen: int = _ID.unpack(_receive(self._socket, _ID.size))[0]
        return chosen

    def _serve(self, listener: socket.socket) -> None:
        """Be the last stage of the one connection that comes."""
        connection = _prompt(listener.accept()[0])
        while True:
            past, count, vocabulary = _HEADER.unpack(_receive(connection, _HEADER.size))
            hidden = np.frombuffer(_receive(connection, 4 * count * self._width), np.float32).reshape(
                count, self._width
            )
            if past == 0:
                self._last.release([_SEQUENCE])
            logits = self._last.run([_row(self._last, past, [0] * count)], hidden)[0]
            connection.sendall(_padded(logits, vocabulary) if vocabulary else _ID.pack(int(logits.argmax())))


def _row(engine: Engine, past: int, tokens: list[int]) -> Row:
    blocks = tuple(range(engine.capacity.blocks))
    return Row(_SEQUENCE, 0, past, tuple(tokens), known=len(tokens), sample=True, blocks=blocks)


def _padded(logits: NDArray[np.float32], vocabulary: int) -> bytes:
    """The logits, and behind them what a larger vocabulary would have; its ids are never chosen."""
    return np.pad(logits, (0, vocabulary - len(logits)), constant_values=-np.inf).astype(np.float32).tobytes()


def _receive(connection: socket.socket, size: int) -> bytearray:
    received = bytearray()
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            raise ConnectionError("the other end of the link closed it")
        received += piece
    return received


def _prompt(connection: socket.socket) -> socket.socket:
    """Without the wait that gathers small messages."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


if __name__ == "__main__":
    answer(ReturnPath(Path(sys.argv[1])).generate)
