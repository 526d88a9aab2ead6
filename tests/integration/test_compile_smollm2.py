"""SmolLM2-135M compiled for real: the same tokens as OpenVINO GenAI on the same weights, every fusion in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai
import pytest
from openvino._offline_transformations import paged_attention_transformation
from tokenizers import Tokenizer

from shoal.manifest import Manifest, Precision, read_manifest, verify_files
from shoal.resource import load_sharded_model
from shoal_cli.cache import checkpoints_dir
from shoal_stage.compile import CompileOptions, compile_model, describe_checkpoint, resolve_source
from shoal_stage.compile.check import FUSED_ATTENTION, FUSED_ROPE, PAGED_ATTENTION, layer_types
from shoal_stage.compile.readers import open_checkpoint
from shoal_stage.engine.chain import build_chain

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2.yaml"
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
TOKENS = 16
PROMPTS = [
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "The quick brown fox",
    "def fibonacci(n):\n    ",
    "ภาษาไทย 世界 😀 1234567890",
]
TEXTS = [
    *PROMPTS,
    "",
    " ",
    "   leading and   inner   spaces   ",
    "\t\ttabs\n\n\nand\r\nlines \n ",
    "It's we're they'd I'll you've I'm DON'T",
    "1 12 123 1234 3.14159 0xFF 1,000,000 2026-11-29",
    "émigré naïve Straße İstanbul ﬁ ½ ①",
    "สวัสดีครับ ขอบคุณมาก",
    "你好，世界。日本語のテキスト。한국어 텍스트",
    "👩‍👩‍👧‍👦 🏳️‍🌈 ❤️ 🇫🇷",
    "for (int i = 0; i < n; ++i) { a[i] += b[i]; } // done",
    "<|im_start|>system\nYou<|im_end|><|endoftext|> a <|not_special|>",
    "https://example.org/a?b=c&d=%20e#f",
    "zero\u200bwidth no\u00a0break \ufeff bom",
]


@pytest.fixture(scope="module")
def gguf_path() -> Path:
    """The real checkpoint, fetched once into the user's cache."""
    source = load_sharded_model(EXAMPLE).spec.model.source
    assert source is not None
    return resolve_source(source.uri, checkpoints_dir(), source.sha256).path


@pytest.fixture(scope="module")
def f16_path(gguf_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with every matrix dequantised to F16: weights that GenAI and shoal read alike."""
    return as_f16_gguf(gguf_path, tmp_path_factory.mktemp("checkpoint") / "f16.gguf")


@pytest.fixture(scope="module")
def directory(f16_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled to F16: the weights are then exactly those of the file."""
    destination = tmp_path_factory.mktemp("compile") / "smollm2"
    return compile_model(f16_path, destination, CompileOptions(Precision.F16))


@pytest.fixture(scope="module")
def manifest(directory: Path) -> Manifest:
    return read_manifest(directory)


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(directory / "tokenizer" / "tokenizer.json"))


def greedy(directory: Path, manifest: Manifest, prompts: list[list[int]]) -> list[list[int]]:
    """Tokens of one stage in exact mode, and the logits' margin at each."""
    chain = build_chain(directory, manifest, 0, len(manifest.blocks))
    request = ov.Core().compile_model(chain.model, "CPU", EXACT).create_infer_request()
    answers = []
    for prompt in prompts:
        request.reset_state()
        past, step, out = 0, prompt, []
        for _ in range(TOKENS):
            count = len(step)
            logits = request.infer(
                {
                    "input_ids": np.array([step]),
                    "attention_mask": np.ones((1, past + count), np.int64),
                    "position_ids": np.arange(past, past + count)[None],
                    "beam_idx": np.zeros(1, np.int32),
                    "logits_indices": np.array([count - 1]),
                }
            )[0]
            past, step = past + count, [int(logits[0].argmax())]
            out += step
        answers.append(out)
    return answers


def test_greedy_tokens_equal_those_of_genai(f16_path, directory, manifest, tokenizer):
    """Both run the same weights, each in a graph of its own making."""
    pipeline = openvino_genai.LLMPipeline(str(f16_path), "CPU", **EXACT)
    prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in PROMPTS]
    expected = []
    for prompt in prompts:
        settings = openvino_genai.GenerationConfig(
            max_new_tokens=TOKENS, ignore_eos=True, do_sample=False, apply_chat_template=False
        )
        expected.append(list(pipeline.generate(ov.Tensor(np.array([prompt], np.int64)), settings).tokens[0]))
    assert greedy(directory, manifest, prompts) == expected


def as_f16_gguf(source: Path, destination: Path) -> Path:
    """The same model with every matrix dequantised."""
    import gguf

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(destination, "llama")
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        writer.add_key_value(key, field.contents(), kind, field.types[1] if kind is gguf.GGUFValueType.ARRAY else None)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for tensor in reader.tensors:
        values = np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
        writer.add_tensor(tensor.name, np.ascontiguousarray(values, np.float32 if values.ndim == 1 else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return destination


@pytest.mark.parametrize(("start", "end"), [(0, 4), (14, 18), (28, 32), (0, 32)])
def test_every_layer_of_a_stage_is_fused(directory, manifest, start, end):
    chain = build_chain(directory, manifest, start, end)
    found = layer_types(ov.Core().compile_model(chain.model, "CPU", EXACT))
    assert found[FUSED_ATTENTION] == chain.layers > 0
    assert found[FUSED_ROPE] == 2 * chain.layers
    norms = 2 * chain.layers + (end == len(manifest.blocks))
    assert found["RMS"] == norms
    # RoPE's angles and the mask once a stage, not once a layer.
    assert found["Math"] == 2
    assert found["Range"] == 2


@pytest.mark.parametrize(("start", "end"), [(0, 4), (14, 18), (28, 32)])
def test_every_layer_of_a_paged_stage_is_fused(directory, manifest, start, end):
    chain = build_chain(directory, manifest, start, end)
    paged_attention_transformation(chain.model)
    names = {port.any_name for port in chain.model.inputs}
    assert {"input_ids" if start == 0 else "inputs_embeds", "position_ids", "past_lens", "block_indices"} <= names
    assert {"attention_mask", "beam_idx"}.isdisjoint(names)
    found = layer_types(ov.Core().compile_model(chain.model, "CPU", EXACT))
    assert found[PAGED_ATTENTION] == chain.layers > 0
    assert found[FUSED_ROPE] == 2 * chain.layers


def test_half_precision_weights_stay_half_in_memory(directory, manifest):
    chain = build_chain(directory, manifest, 1, 2)
    compiled = ov.Core().compile_model(chain.model, "CPU", EXACT)
    kinds = [
        port.get_source_output().get_element_type()
        for node in compiled.get_runtime_model().get_ordered_ops()
        if node.get_rt_info()["layerType"].astype(str) == "FullyConnected"
        for port in node.inputs()[1:2]
    ]
    assert kinds == [ov.Type.f16] * 7


def test_state_names_are_those_of_the_whole_model(directory, manifest):
    chain = build_chain(directory, manifest, 14, 18)
    states = {variable.info.variable_id for variable in chain.model.get_variables()}
    assert states == {f"layer.{layer}.{part}" for layer in range(13, 17) for part in ("key", "value")}
    assert chain.first_layer == 13


def test_encodings_equal_those_of_genai(gguf_path, tokenizer, tmp_path):
    theirs = openvino_genai.LLMPipeline(str(gguf_path), "CPU").get_tokenizer()
    for text in TEXTS:
        expected = theirs.encode(text, add_special_tokens=False).input_ids.data[0].tolist() if text else []
        ours = tokenizer.encode(text, add_special_tokens=False).ids
        assert ours == expected, text
        assert tokenizer.decode(ours, skip_special_tokens=False) == text


def test_the_manifest_tells_the_truth(gguf_path, f16_path, directory, manifest):
    verify_files(directory, manifest.files_of(0, len(manifest.blocks)) + manifest.tokenizer)
    assert manifest.eos_token_ids == (2, 0)
    assert manifest.bos_token_id == 1
    assert manifest.shape == open_checkpoint(f16_path).architecture.shape()
    facts = describe_checkpoint(gguf_path, Precision.F16)
    for block, estimated in zip(manifest.blocks, facts.block_bytes, strict=True):
        assert 0.999 < estimated / block.weight_bytes <= 1.0, block.name
