"""Compiling a stage's graph for a device, and making sure that it runs there and as it should.

AUTO and HETERO fall back to the CPU silently, so the device is asked for by name and the answer is compared. A graph
whose attention is not fused still computes, at half the speed: fused operations are counted, and none is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import openvino as ov

from shoal.errors import ResourceError
from shoal.plan.document import Device
from shoal_stage.compile.check import FUSED_ATTENTION, PAGED_ATTENTION, layer_types
from shoal_stage.engine.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class OnDevice:
    """A compiled graph and the facts about it."""

    compiled: Any
    execution_devices: tuple[str, ...]
    fused_attention: int


def properties(settings: EngineSettings) -> dict[str, Any]:
    """What OpenVINO is told; a device refuses properties that it does not know.

    Exact mode: f32 inference and KV, no dynamic quantisation of activations, whose scales depend on the batch.
    Pinning is off: OpenVINO pins from the first core on in every process, so that two stages on one machine would
    share one core and leave the other idle. Who wants a stage on certain cores starts it with taskset.
    """
    chosen: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
    if settings.cache_dir is not None:
        chosen["CACHE_DIR"] = str(settings.cache_dir)
    if settings.device is not Device.NPU:
        chosen["KV_CACHE_PRECISION"] = settings.kv.value
        if settings.exact:
            chosen |= {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    if settings.device is Device.CPU:
        chosen["ENABLE_CPU_PINNING"] = False
        if settings.threads is not None:
            chosen["INFERENCE_NUM_THREADS"] = settings.threads
    return chosen


def compile_for(model: ov.Model, layers: int, settings: EngineSettings) -> OnDevice:
    """Compile `model` for the device of `settings`.

    Raises ResourceError when the device is missing, refuses the graph, or would run it elsewhere or unfused.
    """
    core, device = ov.Core(), settings.device.value
    present = core.available_devices
    if not any(name == device or name.startswith(f"{device}.") for name in present):
        raise ResourceError(
            f"this machine has no device {device} for OpenVINO, only {', '.join(present) or 'none'}: "
            "check its driver, and that the device is passed into the container"
        )
    try:
        compiled = core.compile_model(model, device, properties(settings))
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise ResourceError(f"device {device} cannot load blocks of {model.get_friendly_name()}: {reason}") from error
    executing = tuple(compiled.get_property("EXECUTION_DEVICES"))
    if any(name.split(".")[0] != device for name in executing) or not executing:
        raise ResourceError(f"asked for device {device}, OpenVINO would run on {', '.join(executing) or 'none'}")
    kinds = layer_types(compiled)
    fused = kinds[FUSED_ATTENTION] + kinds[PAGED_ATTENTION]
    # Other devices' plugins name their operations otherwise: there the count is reported, not judged.
    if settings.device is Device.CPU and fused != layers:
        raise ResourceError(
            f"device {device} fuses attention in {fused} of {layers} layers of {model.get_friendly_name()}: "
            "compile the model directory again with this version"
        )
    return OnDevice(compiled, executing, fused)


def versions() -> dict[str, str]:
    """Versions that must agree between the stages of a pipeline."""
    return {"openvino": version("openvino")}
