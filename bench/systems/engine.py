"""The paged engine alone: no router, no hops, no text; greedy by argmax. What the rest of the path is measured against.

    python -m bench.systems.engine MODEL_DIR SEQUENCES

Requests: {"prompts": [ids, …], "tokens": n} -> {"seconds", "answers"}, all prompts at once.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from bench.workers import Message, answer
from shoal.manifest import read_manifest
from shoal.wire.messages import Row
from shoal_stage.engine.open import open_engine
from shoal_stage.engine.settings import EngineKind, EngineSettings


def main(directory: str, sequences: str) -> None:
    """Serve generate requests."""
    path = Path(directory)
    manifest = read_manifest(path)
    settings = EngineSettings(sequences=int(sequences), threads=1)
    engine = open_engine(EngineKind.PAGED, path, manifest, 0, len(manifest.blocks), settings)
    pages = engine.capacity.blocks // int(sequences)

    def generate(request: Message) -> Message:
        prompts: list[list[int]] = request["prompts"]
        answers: list[list[int]] = [[] for _ in prompts]
        engine.release(range(len(prompts)))
        begun = time.perf_counter()
        for number in range(request["tokens"]):
            rows = []
            for seq, prompt in enumerate(prompts):
                fed = prompt if number == 0 else answers[seq][-1:]
                past = 0 if number == 0 else len(prompt) + number - 1
                blocks = tuple(range(seq * pages, (seq + 1) * pages))
                rows.append(Row(seq, 0, past, tuple(fed), known=len(fed), sample=True, blocks=blocks))
            for seq, drawn in enumerate(engine.run(rows, None).argmax(axis=1)):
                answers[seq].append(int(drawn))
        return {"seconds": time.perf_counter() - begun, "answers": answers}

    answer(generate)


if __name__ == "__main__":
    main(*sys.argv[1:])
