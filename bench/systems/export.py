"""The process behind `bench export`: `write SHAPE LAYERS DIR` compiles random weights, `stage DIR` runs them."""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from shoal.manifest import MANIFEST_FILE, BlockKind, Manifest, Precision, read_manifest
from shoal_stage.compile.architecture import Architecture, Llama3Scaling, Rope
from shoal_stage.compile.blocks import block_names, build_block, storage_for
from shoal_stage.compile.families import FAMILIES
from shoal_stage.compile.readers.checkpoint import Checkpoint, TensorView, expected_tensors
from shoal_stage.compile.tokenizer.source import GgufTokenizer
from shoal_stage.compile.workplace import open_workplace, write_durably
from shoal_stage.engine.chain import build_chain

_SIZES = {"8b": (4096, 32, 14336), "70b": (8192, 64, 28672)}
_DECODED = 16
_POOL = 1 << 22


def architecture_of(shape: str, layers: int) -> Architecture:
    """Llama 3.1's shape with that many layers."""
    hidden, heads, ffn = _SIZES[shape]
    return Architecture(
        family="llama",
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        kv_heads=8,
        head_size=128,
        ffn_size=ffn,
        vocab_size=128256,
        max_context=131072,
        norm_epsilon=1e-5,
        rope=Rope(500000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192)),
        tied_embeddings=False,
    )


def random_checkpoint(architecture: Architecture) -> Checkpoint:
    """A checkpoint whose tensors are cut from one pool of normal numbers."""
    pool = np.tile(np.random.default_rng(0).standard_normal(_POOL, np.float32) * np.float32(0.02), 2)

    def view(name: str, shape: tuple[int, ...]) -> TensorView:
        columns = shape[1] if len(shape) > 1 else 1
        # Each tensor begins elsewhere in the pool: equal constants would be stored once.
        first = zlib.crc32(name.encode()) % _POOL
        own = pool[first : first + _POOL]

        def read(start: int, end: int) -> NDArray[np.float32]:
            values = np.resize(own, (end - start) * columns)
            return values.reshape(end - start, columns) if len(shape) > 1 else values + np.float32(1)

        return TensorView(name, name, shape, 2 * int(np.prod(shape)), read)

    tensors = {name: view(name, shape) for name, shape in expected_tensors(architecture).items()}
    nowhere = Path("random")
    return Checkpoint(nowhere, FAMILIES[0], architecture, tensors, GgufTokenizer(nowhere, {}), lambda: "0" * 64)


def write(shape: str, layers: int, directory: Path) -> dict[str, float]:
    """Compile to INT4 and say what it took."""
    architecture = architecture_of(shape, layers)
    checkpoint = random_checkpoint(architecture)
    storage = storage_for(architecture, Precision.INT4)
    seconds: dict[BlockKind, list[float]] = {kind: [] for kind in BlockKind}
    with open_workplace(directory, shape) as workplace:
        blocks = []
        for place in block_names(layers):
            began = time.perf_counter()
            model = build_block(checkpoint, place, storage)
            blocks.append(workplace.write_block(model, place.name, place.kind))
            del model
            gc.collect()
            seconds[place.kind].append(time.perf_counter() - began)
        manifest = Manifest(
            name=f"random-{shape}",
            source_sha256=checkpoint.digest(),
            precision=Precision.INT4,
            group_size=storage.layers.group if storage.layers else None,
            shape=architecture.shape(),
            tied_embeddings=False,
            blocks=tuple(blocks),
        )
        write_durably(workplace.directory / MANIFEST_FILE, manifest.canonical_json())
        workplace.publish(directory)
    return {
        "peak_rss_gb": peak_rss_gb(),
        "seconds_per_layer": float(np.mean(seconds[BlockKind.LAYER])),
        "seconds_of_ends": sum(seconds[BlockKind.EMBED] + seconds[BlockKind.HEAD]),
        "layer_mb": blocks[1].weight_bytes / 1e6,
    }


def stage(directory: Path) -> dict[str, float]:
    """Load all layers, without embedding and head, as one stage on the CPU; a short prompt, then single tokens."""
    manifest = read_manifest(directory)
    began = time.perf_counter()
    chain = build_chain(directory, manifest, 1, manifest.shape.layers + 1)
    compiled = ov.Core().compile_model(chain.model, "CPU", {"PERFORMANCE_HINT": "LATENCY"})
    request = compiled.create_infer_request()
    load_s = time.perf_counter() - began
    past, rng = 0, np.random.default_rng(1)
    began = 0.0
    for count in [8, *[1] * _DECODED]:
        if past == 8:
            began = time.perf_counter()
        request.infer(
            {
                "inputs_embeds": rng.standard_normal((1, count, manifest.shape.hidden_size), np.float32),
                "attention_mask": np.ones((1, past + count), np.int64),
                "position_ids": np.arange(past, past + count)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
        )
        past += count
    return {
        "load_s": load_s,
        "tokens_per_s": _DECODED / (time.perf_counter() - began),
        "rss_gb": peak_rss_gb(),
    }


def peak_rss_gb() -> float:
    """Peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main(arguments: list[str]) -> dict[str, float]:
    """Dispatch."""
    if arguments[0] == "write":
        return write(arguments[1], int(arguments[2]), Path(arguments[3]))
    return stage(Path(arguments[1]))


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
