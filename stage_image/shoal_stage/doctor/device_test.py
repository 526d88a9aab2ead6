"""A small model with a known answer on each device: does it compute right, where, and how fast does it read weights?

Some drivers compute garbage without an error (openvino#38100), and AUTO runs on the CPU without a word. The model is
two matrix products with a SiLU between them, its weights drawn by a fixed seed and compressed to 8 bits as a stage's
are; the right answer comes from numpy in f32. The second product is timed as decoding does it: one row.
"""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np
import openvino as ov
import openvino.opset16 as ops
from numpy.typing import NDArray

from shoal_stage.doctor.surroundings import DeviceTest

_WIDTH: Final = 4096
_ROWS: Final = 8192
_RUNS: Final = 12
_SEED: Final = 20261130


def test_device(device: str) -> DeviceTest:
    """Run the model on `device`, asked for by name."""
    up, down, scale = _weights()
    row = np.random.default_rng(_SEED + 1).standard_normal((1, _WIDTH)).astype(np.float32)
    try:
        compiled = ov.Core().compile_model(_model(up, down, scale), device, {"PERFORMANCE_HINT": "LATENCY"})
        executes = tuple(compiled.get_property("EXECUTION_DEVICES"))
        request = compiled.create_infer_request()
        found = np.array(request.infer([row])[0], dtype=np.float64)
        fastest = min(_timed(request, row) for _ in range(_RUNS))
    except RuntimeError as error:
        return DeviceTest(device, error=str(error).strip().splitlines()[-1])
    expected = _right_answer(up, down, scale, row)
    norm = float(np.linalg.norm(found) * np.linalg.norm(expected))
    cosine = float((found * expected).sum() / norm) if np.isfinite(found).all() and norm else 0.0
    return DeviceTest(device, executes, cosine, (up.nbytes + down.nbytes) / fastest / 1e9)


test_device.__test__ = False  # type: ignore[attr-defined]  # pytest would take it for a test


def _timed(request: Any, row: NDArray[np.float32]) -> float:
    began = time.perf_counter()
    request.infer([row])
    return time.perf_counter() - began


def _weights() -> tuple[NDArray[np.int8], NDArray[np.int8], np.float32]:
    rng = np.random.default_rng(_SEED)
    up = rng.integers(-127, 128, (_ROWS, _WIDTH), dtype=np.int8)
    down = rng.integers(-127, 128, (_WIDTH, _ROWS), dtype=np.int8)
    return up, down, np.float32(1 / (73 * np.sqrt(_WIDTH)))


def _model(up: NDArray[np.int8], down: NDArray[np.int8], scale: np.float32) -> ov.Model:
    row = ops.parameter([1, _WIDTH], np.float32)
    middle = ops.swish(ops.matmul(row, _compressed(up, scale), False, True), ops.constant(np.float32(1)))
    return ov.Model([ops.matmul(middle, _compressed(down, scale), False, True)], [row], "doctor")


def _compressed(weights: NDArray[np.int8], scale: np.float32) -> Any:
    """8-bit weights as NNCF leaves them, so that plugins keep them so: that is what is read."""
    scales = ops.constant(np.full((weights.shape[0], 1), scale, np.float16))
    product = ops.multiply(ops.convert(ops.constant(weights), np.float16), scales)
    return ops.convert(product, np.float32)


def _right_answer(
    up: NDArray[np.int8], down: NDArray[np.int8], scale: np.float32, row: NDArray[np.float32]
) -> NDArray[np.float64]:
    rounded = np.float32(np.float16(scale))
    middle = (row @ up.astype(np.float32).T) * rounded
    middle = middle / (1 + np.exp(-middle))
    found: NDArray[np.float64] = ((middle @ down.astype(np.float32).T) * rounded).astype(np.float64)
    return found
