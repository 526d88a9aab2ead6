"""OpenVINO GenAI on one of our model directories: the worker, and the directory in the form that GenAI opens.

GenAI wants one model with inputs input_ids, attention_mask, position_ids and beam_idx and output logits [B, T, V].
Our blocks chained from first to last are that model but for the head's choice of positions, which is taken out here:
both systems run the very same quantised weights. GenAI then adds its own slice before the last MatMul.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai
from numpy.typing import NDArray

from bench.workers import Message, answer
from shoal.manifest import read_manifest
from shoal_stage.engine.chain import build_chain

MODEL_FILE = "openvino_model.xml"


def export_monolith(directory: Path, gguf: Path, destination: Path) -> Path:
    """Write the model directory as one IR with GenAI's tokenizer files beside it; done once per digest."""
    manifest = read_manifest(directory)
    target = destination / f"genai-{manifest.digest[:16]}"
    if target.exists():
        return target
    partial = target.with_name(target.name + f".{os.getpid()}.partial")
    partial.mkdir(parents=True)
    chain = build_chain(directory, manifest, 0, len(manifest.blocks))
    ov.save_model(_all_positions(chain.model), partial / MODEL_FILE, compress_to_fp16=False)
    _write_tokenizer(gguf, partial)
    partial.rename(target)
    return target


def _all_positions(model: ov.Model) -> ov.Model:
    """Logits [B, T, V] instead of [S, V]: the Gather by logits_indices and the Reshape before it go."""
    (indices,) = [parameter for parameter in model.get_parameters() if parameter.friendly_name == "logits_indices"]
    (gather,) = [target.get_node() for target in indices.output(0).get_target_inputs()]
    flatten = gather.input_value(0).get_node()
    hidden = flatten.input_value(0)
    for target in list(gather.output(0).get_target_inputs()):
        target.replace_source_output(hidden)
    model.remove_parameter(indices)
    model.validate_nodes_and_infer_types()
    model.output(0).get_tensor().set_names({"logits"})
    return model


def _write_tokenizer(gguf: Path, directory: Path) -> None:
    # GenAI builds its tokenizer from the GGUF and saves it beside the file it was given.
    scratch = directory / "gguf"
    scratch.mkdir()
    copy = scratch / "model.gguf"
    copy.symlink_to(gguf.resolve())
    genai.LLMPipeline(str(copy), "CPU", enable_save_ov_model=True)
    for name in ("openvino_tokenizer", "openvino_detokenizer"):
        for suffix in (".xml", ".bin"):
            shutil.copy(scratch / (name + suffix), directory)
    shutil.rmtree(scratch)


def main(directory: str, backend: str, *properties: str) -> None:
    """Serve generate requests: {"prompts": [ids], "tokens": n} -> {"seconds", "answers", "ttft_s"}."""
    settings = dict(item.split("=", 1) for item in properties)
    pipeline = genai.LLMPipeline(directory, "CPU", ATTENTION_BACKEND=backend, INFERENCE_NUM_THREADS=1, **settings)

    def generate(request: Message) -> Message:
        config = genai.GenerationConfig(max_new_tokens=request["tokens"], do_sample=False, ignore_eos=True)
        (prompt,) = request["prompts"]
        ids = ov.Tensor(_batch(prompt))
        mask = ov.Tensor(_batch([1] * len(prompt)))
        begun = time.perf_counter()
        result = pipeline.generate(genai.TokenizedInputs(ids, mask), config)
        seconds = time.perf_counter() - begun
        return {
            "seconds": seconds,
            "answers": [list(result.tokens[0])],
            "ttft_s": [result.perf_metrics.get_ttft().mean / 1000],
        }

    answer(generate)


def _batch(values: list[int]) -> NDArray[np.int64]:
    return np.array([values], dtype=np.int64)


if __name__ == "__main__":
    main(*sys.argv[1:])
