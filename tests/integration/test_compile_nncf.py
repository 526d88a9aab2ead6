"""Our quantisation gives the numbers of NNCF's data-free `compress_weights`, an independent implementation."""

from __future__ import annotations

import warnings

import numpy as np
import openvino as ov
import openvino.opset15 as op
import pytest

from shoal_stage.compile.quantise import Scheme, quantise


@pytest.mark.parametrize(("mode", "scheme"), [("INT4_SYM", Scheme(4, 64)), ("INT8_SYM", Scheme(8, None))])
def test_the_numbers_are_those_of_nncf(mode, scheme):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import nncf
    weight = np.random.default_rng(1).standard_normal((48, 256)).astype(np.float32)
    x = op.parameter([-1, 256], np.float32)
    model = ov.Model([op.result(op.matmul(x, op.constant(weight), False, True))], [x], "one")
    kind = nncf.CompressWeightsMode[mode]
    extra = {"all_layers": True, "group_size": scheme.group, "ratio": 1.0} if scheme.bits == 4 else {}
    packed = nncf.compress_weights(model, mode=kind, **extra)
    (matmul,) = (node for node in packed.get_ordered_ops() if node.get_type_name() == "MatMul")
    theirs = dequantised(matmul.input_value(1))
    ours = quantise(weight, scheme).restore()
    np.testing.assert_allclose(ours, theirs, atol=2e-3, rtol=0)
    # f16 products on their side, f32 on ours: the same numbers behind them.
    assert np.mean(np.abs(ours - theirs) < 1e-3) > 0.999


def dequantised(output: ov.Output) -> np.ndarray:
    """The values of a constant subgraph."""
    model = ov.Model([op.result(output)], [], "weights")
    return ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})({})[0]
