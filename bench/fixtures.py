"""The deep fixture: SmolLM2 with pass-through layers inserted, so that a step costs what a larger model's step costs.

After each layer of the original come copies of it whose two output projections are zero: they do all the work of a
layer and add nothing to the residual stream, so the text is the original's. It is no model of its own, and every figure
that is measured on it is labelled `deep`. It is made as a GGUF file, which llama.cpp and our compiler both read.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGUFValueType

from bench.models import BenchModel, bench_cache, smollm2
from shoal.manifest import Precision
from shoal_cli.cache import models_dir
from shoal_stage.compile import CompileOptions, ResolvedSource, compile_model
from shoal_stage.compile.compiler import FORMAT

DEPTH = 4
"""Layers of the fixture for each layer of the original."""

_LAYER = re.compile(r"blk\.(\d+)\.(.+)")
_OUTPUT_PROJECTIONS = frozenset({"attn_output.weight", "ffn_down.weight"})


def deep_smollm2(precision: Precision = Precision.INT4) -> BenchModel:
    """The fixture in `precision`: 120 layers for 30. Written and compiled once."""
    original = smollm2(precision).checkpoint
    path = bench_cache() / f"smollm2-deep{DEPTH}-{original.stat().st_size}.gguf"
    if not path.exists():
        partial = path.with_name(path.name + ".partial")
        deepen(original, partial, DEPTH)
        partial.replace(path)
    directory = models_dir() / f"bench-smollm2-deep{DEPTH}-{precision.lower()}-format{FORMAT}"
    compile_model(ResolvedSource(path, path.stem), directory, CompileOptions(precision=precision, name="smollm2-deep"))
    return BenchModel(directory, path)


def deepen(source: Path, target: Path, times: int) -> None:
    """Write the GGUF file `source` with `times` layers for each of its layers; all but the first pass through."""
    reader = GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = GGUFWriter(target, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value = field.contents()
        if field.name == f"{architecture}.block_count":
            value *= times
        kind = field.types[0]
        writer.add_key_value(field.name, value, kind, field.types[-1] if kind is GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        match = _LAYER.fullmatch(tensor.name)
        if match is None:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        layer, part = int(match[1]), match[2]
        for copy in range(times):
            # Zero bytes are zero in every format that GGUF has: scale and offset are zero, too.
            silent = copy > 0 and part in _OUTPUT_PROJECTIONS
            data = np.zeros_like(tensor.data) if silent else tensor.data
            writer.add_tensor(f"blk.{layer * times + copy}.{part}", data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
