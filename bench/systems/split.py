"""Stages in one process, without hops: what cutting a model costs by itself, and what the beam_idx Gather is worth.

    python -m bench.systems.split MODEL_DIR ENGINE

Requests: {"prompts": [ids], "tokens": n, "stages": s} or, for the plain loop, "beam_idx": true or false instead of
"stages" -> {"seconds", "answers"}. Without beam_idx the Gather between each state and its use is taken out of the
stateful graph: the form that the paper compares with.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov

from bench.systems.cut import cut_blocks
from bench.workers import Message, answer
from shoal.manifest import read_manifest
from shoal.wire.messages import Row
from shoal_stage.engine.chain import build_chain
from shoal_stage.engine.interface import Engine
from shoal_stage.engine.open import open_engine
from shoal_stage.engine.settings import EngineKind, EngineSettings

Forward = Callable[[list[int], int], int]
"""Feeds ids at the position given and draws the next id."""

_SETTINGS = EngineSettings(sequences=1, threads=1)


class Splits:
    """Engines by number of stages, opened when they are first asked for."""

    def __init__(self, directory: Path, kind: EngineKind) -> None:
        self._directory = directory
        self._kind = kind
        self._manifest = read_manifest(directory)
        self._engines: dict[int, list[Engine]] = {}
        self._plain: dict[bool, ov.CompiledModel] = {}

    def generate(self, request: Message) -> Message:
        """Greedy decode of one prompt."""
        run = self._plain_run(request["beam_idx"]) if "beam_idx" in request else self._split_run(request["stages"])
        begun = time.perf_counter()
        (prompt,) = request["prompts"]
        ids = [run(prompt, 0)]
        while len(ids) < request["tokens"]:
            ids.append(run(ids[-1:], len(prompt) + len(ids) - 1))
        return {"seconds": time.perf_counter() - begun, "answers": [ids]}

    def _split_run(self, stages: int) -> Forward:
        engines = self._engines.setdefault(stages, [])
        if not engines:
            engines += [
                open_engine(self._kind, self._directory, self._manifest, start, end, _SETTINGS)
                for start, end in cut_blocks(self._manifest, stages)
            ]
        blocks = tuple(range(engines[0].capacity.blocks))
        for engine in engines:
            engine.release([1])

        def run(tokens: list[int], past: int) -> int:
            row = Row(1, 0, past, tuple(tokens), known=len(tokens), sample=True, blocks=blocks)
            first, *others = engines
            output = first.run([row], None)
            for engine in others:
                output = engine.run([row], output)
            return int(output[0].argmax())

        return run

    def _plain_run(self, beam_idx: bool) -> Forward:
        if beam_idx not in self._plain:
            chain = build_chain(self._directory, self._manifest, 0, len(self._manifest.blocks))
            if not beam_idx:
                _without_beam_idx(chain.model)
            hints = {"PERFORMANCE_HINT": "LATENCY", "KV_CACHE_PRECISION": "u8", "INFERENCE_NUM_THREADS": 1}
            self._plain[beam_idx] = ov.Core().compile_model(chain.model, "CPU", hints)
        request = self._plain[beam_idx].create_infer_request()
        positions = np.arange(_SETTINGS.max_context, dtype=np.int64)[None]
        ones = np.ones_like(positions)
        request.set_tensor("beam_idx", ov.Tensor(np.zeros(1, np.int32)))

        def run(tokens: list[int], past: int) -> int:
            end = past + len(tokens)
            request.set_tensor("input_ids", ov.Tensor(np.array([tokens], np.int64)))
            request.set_tensor("position_ids", ov.Tensor(positions[:, past:end], shared_memory=True))
            request.set_tensor("attention_mask", ov.Tensor(ones[:, :end], shared_memory=True))
            request.set_tensor("logits_indices", ov.Tensor(np.array([len(tokens) - 1])))
            request.infer(share_outputs=True)
            return int(request.get_output_tensor(0).data[0].argmax())

        return run


def _without_beam_idx(model: ov.Model) -> None:
    """Let each state be read as it is. The parameter stays: the batch size is taken from its shape."""
    (parameter,) = [item for item in model.get_parameters() if item.friendly_name == "beam_idx"]
    for target in list(parameter.output(0).get_target_inputs()):
        gather = target.get_node()
        if gather.get_type_name() == "Gather":
            gather.output(0).replace(gather.input_value(0))
    model.validate_nodes_and_infer_types()


if __name__ == "__main__":
    answer(Splits(Path(sys.argv[1]), EngineKind(sys.argv[2])).generate)
