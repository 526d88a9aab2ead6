"""llama.cpp over RPC as a worker: two or more rpc-servers, each pinned to its core, and a client that shares them.

    python -m bench.peers.llamacpp.rpc GGUF CORES

Requests: {"sequences": n, "prompt": p, "tokens": t} -> {"seconds", "tokens"}: n sequences at once, each with a prompt
of p tokens and an answer of t. Every request is a run of llama-batched-bench, which draws no tokens and makes no text;
loading is not in its time.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.models import bench_cache
from bench.peers.llamacpp.build import Programs, build
from bench.peers.missing import PeerMissing
from bench.workers import Message, answer
from shoal.parent import die_with_parent

_START_SECONDS = 30.0
_RUN_SECONDS = 280.0


class RpcRing:
    """The servers, for as long as this process lives."""

    def __init__(self, programs: Programs, gguf: Path, cores: list[int]) -> None:
        self._programs = programs
        self._gguf = gguf
        self._cores = ",".join(map(str, cores))
        self._addresses = [_start(programs.rpc_server, core) for core in cores]

    def generate(self, request: Message) -> Message:
        """Prompts and answers of all sequences at once."""
        sequences, prompt, tokens = request["sequences"], request["prompt"], request["tokens"]
        context = sequences * (prompt + tokens)
        # All layers on the servers, an even share each: a server is a node, the client only embeds and asks.
        options = {
            "--model": str(self._gguf),
            "--rpc": ",".join(self._addresses),
            "--gpu-layers": "999",
            "--tensor-split": ",".join("1" for _ in self._addresses),
            "--threads": "1",
            "--ctx-size": str(context),
            "-npp": str(prompt),
            "-ntg": str(tokens),
            "-npl": str(sequences),
            "--output-format": "jsonl",
        }
        command = ["taskset", "-c", self._cores, str(self._programs.batched_bench)]
        command += [part for option in options.items() for part in option]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_SECONDS, check=False)
        found = last_object(done.stdout)
        if done.returncode or found is None:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise PeerMissing(f"llama-batched-bench ended with {done.returncode}: {last}")
        return {"seconds": found["t"], "tokens": sequences * tokens}


def last_object(output: str) -> dict[str, Any] | None:
    """The last line that is a JSON object."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    return None


def _start(program: Path, core: int) -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["taskset", "-c", str(core), str(program), "--host", "127.0.0.1", "--port", str(port), "--threads", "1"]
    # A server writes a line for every connection; what matters is whether it listens.
    silent = subprocess.DEVNULL
    server = subprocess.Popen(command, stdout=silent, stderr=silent, preexec_fn=die_with_parent)
    deadline = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return f"127.0.0.1:{port}"
        time.sleep(0.05)
    raise PeerMissing(f"{program.name} does not listen: it ended with {server.poll()}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    answer(RpcRing(build(bench_cache()), Path(sys.argv[1]), [int(core) for core in sys.argv[2].split(",")]).generate)
