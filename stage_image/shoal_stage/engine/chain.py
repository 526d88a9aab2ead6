"""Blocks chained to one model: the graph of a stage.

A block is a whole model; a stage serves consecutive ones. Each block's hidden input is replaced by the output of the
one before it, and inputs that all layers have become one. RoPE's cos and sin, the mask and the empty state are computed
by the first layer for all (`shoal_stage.compile.graph.shared`). Weights stay in the mapped files until a device
compiles the chain, so splitting a model anew costs neither time nor space.

The names of the inputs are those that OpenVINO's paged-attention transformation looks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset15 as op
from openvino import Node, Output

from shoal.errors import ManifestError, UsageError
from shoal.manifest import Block, BlockKind, Manifest
from shoal_stage.compile.graph.shared import SHARED_NODES

HIDDEN = "hidden"
LOGITS = "logits"
_INPUT_ORDER = ("input_ids", "inputs_embeds", "attention_mask", "position_ids", "beam_idx", "logits_indices")


@dataclass(frozen=True, slots=True)
class Chain:
    """A stage's graph. `layers` attention layers; `blocks` own the mapped weights and must live as long as `model`."""

    model: ov.Model
    layers: int
    first_layer: int
    blocks: tuple[ov.Model, ...]


def build_chain(directory: Path, manifest: Manifest, start: int, end: int) -> Chain:
    """Chain blocks [start, end) of a model directory.

    Inputs: `input_ids` [batch, tokens] when `start` is 0, else `inputs_embeds` [batch, tokens, hidden]; with layers
    `attention_mask` [batch, slots], `position_ids` [batch, tokens], `beam_idx` [batch]; with the head `logits_indices`
    [S], counted over batch x tokens. Output: `logits` [S, vocabulary] with the head, else `hidden`.
    Raises UsageError for a range that does not exist and ManifestError for a block that cannot be read.
    """
    if not 0 <= start < end <= len(manifest.blocks):
        raise UsageError(f"blocks {start}-{end} do not exist: {manifest.name} has blocks 0-{len(manifest.blocks)}")
    core = ov.Core()
    joint = _Joint()
    for block in manifest.blocks[start:end]:
        joint.append(_read(core, directory, block), block.kind)
    return joint.finish(manifest.name, start, end)


def _read(core: ov.Core, directory: Path, block: Block) -> ov.Model:
    path = directory / block.xml.path
    try:
        return core.read_model(path, directory / block.bin.path)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise ManifestError(f"block {block.name} of {directory} cannot be read: {reason}; pull it again") from error


class _Joint:
    """A chain under construction: the open output at its end, and what the blocks share."""

    def __init__(self) -> None:
        self._open: Output | None = None
        self._parameters: dict[str, Node] = {}
        self._shared: dict[str, Node] = {}
        self._sinks: list[Node] = []
        self._blocks: list[ov.Model] = []
        self._layers = 0
        self._ends_in_head = False

    def append(self, model: ov.Model, kind: BlockKind) -> None:
        for parameter in model.get_parameters():
            self._connect(parameter)
        if kind is BlockKind.LAYER:
            self._share(model)
            self._sinks.extend(model.get_sinks())
            self._layers += 1
        (result,) = model.get_results()
        self._open = result.input_value(0)
        # The old result must not go on reading the output: passes count who does.
        result.input(0).replace_source_output(op.constant(np.float32(0)).output(0))
        self._open.get_tensor().set_names(set())
        self._ends_in_head = kind is BlockKind.HEAD
        self._blocks.append(model)

    def _connect(self, parameter: Node) -> None:
        name = parameter.get_friendly_name()
        if name == "inputs_embeds" and self._open is not None:
            parameter.output(0).replace(self._open)
        elif name in self._parameters:
            parameter.output(0).replace(self._parameters[name].output(0))
        else:
            self._parameters[name] = parameter

    def _share(self, model: ov.Model) -> None:
        found = {node.get_friendly_name(): node for node in model.get_ordered_ops()}
        for name in SHARED_NODES:
            if name in self._shared:
                found[name].output(0).replace(self._shared[name].output(0))
            else:
                self._shared[name] = found[name]

    def finish(self, name: str, start: int, end: int) -> Chain:
        assert self._open is not None
        output = self._open
        output.get_tensor().set_names({LOGITS if self._ends_in_head else HIDDEN})
        parameters = [self._parameters[name] for name in _INPUT_ORDER if name in self._parameters]
        model = ov.Model([op.result(output)], self._sinks, parameters, f"{name}[{start}:{end}]")
        return Chain(model, self._layers, max(start - 1, 0), tuple(self._blocks))
