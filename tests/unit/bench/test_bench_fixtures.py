"""The deep fixture: what is inserted does the work of a layer and adds nothing."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from bench.fixtures import deepen

PARTS = ("attn_q.weight", "attn_output.weight", "ffn_down.weight", "attn_norm.weight")


@pytest.fixture
def small(tmp_path):
    rng = np.random.default_rng(3)
    writer = GGUFWriter(tmp_path / "small.gguf", "llama")
    writer.add_block_count(2)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_tensor("token_embd.weight", rng.standard_normal((4, 32), np.float32))
    for layer in range(2):
        for part in PARTS:
            writer.add_tensor(f"blk.{layer}.{part}", rng.standard_normal((32, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "small.gguf"


def test_each_layer_is_followed_by_copies_whose_output_projections_are_zero(small, tmp_path):
    deepen(small, tmp_path / "deep.gguf", 3)
    before = {tensor.name: tensor.data for tensor in GGUFReader(small).tensors}
    reader = GGUFReader(tmp_path / "deep.gguf")
    after = {tensor.name: tensor.data for tensor in reader.tensors}
    assert reader.fields["llama.block_count"].contents() == 6
    assert reader.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    assert len(after) == 1 + 6 * len(PARTS)
    np.testing.assert_array_equal(after["token_embd.weight"], before["token_embd.weight"])
    for layer in range(6):
        for part in PARTS:
            silent = layer % 3 > 0 and part in ("attn_output.weight", "ffn_down.weight")
            expected = np.zeros((32, 32)) if silent else before[f"blk.{layer // 3}.{part}"]
            np.testing.assert_array_equal(after[f"blk.{layer}.{part}"], expected)
