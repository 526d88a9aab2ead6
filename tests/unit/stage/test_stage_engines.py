"""The real engines on a tiny real model: one text for every engine, split, batch, chunking and rollback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.errors import ManifestError, ResourceError, UsageError
from shoal.manifest import read_manifest
from shoal.plan.document import Device
from shoal.wire.errors import InvalidFrame, StageExhausted
from shoal.wire.messages import Row, SamplingParams, SequenceStart
from shoal_stage.engine.chain import build_chain
from shoal_stage.engine.device import compile_for
from shoal_stage.engine.interface import Engine
from shoal_stage.engine.open import open_engine
from shoal_stage.engine.paged import page_tokens
from shoal_stage.engine.settings import EngineKind, EngineSettings, KvPrecision, Rewind

BLOCKS = 5
EXACT = EngineSettings(exact=True, sequences=4, max_context=128, threads=1)
START = SequenceStart(SamplingParams(temperature=0.0), 1)
PROMPT = [7, 3, 91, 14, 3, 60]
SPLITS = [(0, 5), (0, 2, 5), (0, 1, 3, 5), (0, 1, 4, 5)]


class Stages:
    """A pipeline in this process: hidden states go from engine to engine."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = engines

    def run(self, *rows: Row) -> NDArray[np.float32]:
        hidden = None
        for engine in self.engines:
            # As on the wire: a copy, since the array is valid only until the next call, and one that nobody may write.
            hidden = engine.run(rows, hidden).copy()
            hidden.setflags(write=False)
        assert hidden is not None
        return hidden

    def release(self, *seqs: int) -> None:
        for engine in self.engines:
            engine.release(seqs)


@pytest.fixture(scope="module")
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture(scope="module")
def pipelines(tiny_model: Path, stack: ExitStack) -> dict[tuple[EngineKind, tuple[int, ...]], Stages]:
    """Every engine and split, in exact mode."""
    manifest = read_manifest(tiny_model)
    return {
        (kind, split): Stages(
            [
                stack.enter_context(closing(open_engine(kind, tiny_model, manifest, start, end, EXACT)))
                for start, end in pairwise(split)
            ]
        )
        for kind in EngineKind
        for split in SPLITS
    }


def row(seq: int, past_len: int, tokens: Sequence[int], *, sample: bool = True, known: int | None = None) -> Row:
    """A row of a sequence that has slot `seq` and its own four KV blocks, in an order that is not the natural one."""
    return Row(
        seq=seq,
        version=0,
        past_len=past_len,
        tokens=tuple(tokens),
        known=len(tokens) if known is None else known,
        sample=sample,
        slot=seq,
        blocks=(seq + 12, seq, seq + 8, seq + 4),
        start=START if past_len == 0 else None,
    )


def decode(stages: Stages, prompt: Sequence[int], count: int, seq: int = 0) -> list[int]:
    ids = list(prompt)
    logits = stages.run(row(seq, 0, ids))
    for _ in range(count):
        ids.append(int(logits[-1].argmax()))
        logits = stages.run(row(seq, len(ids) - 1, ids[-1:]))
    stages.release(seq)
    return ids[len(prompt) :]


@pytest.fixture(scope="module")
def expected(pipelines: dict[tuple[EngineKind, tuple[int, ...]], Stages]) -> list[int]:
    """Sixty tokens of plain decoding: over one KV block's end."""
    return decode(pipelines[EngineKind.STATEFUL, (0, 5)], PROMPT, 60)


def test_the_tiny_model_does_not_repeat_itself_at_once(expected: list[int]) -> None:
    assert len(set(expected)) > 10


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", list(EngineKind))
def test_every_engine_and_split_gives_the_same_tokens(
    pipelines: dict[tuple[EngineKind, tuple[int, ...]], Stages],
    expected: list[int],
    kind: EngineKind,
    split: tuple[int, ...],
) -> None:
    assert decode(pipelines[kind, split], PROMPT, 60) == expected


@pytest.mark.parametrize("split", SPLITS[1:])
@pytest.mark.parametrize("kind", list(EngineKind))
def test_a_split_does_not_change_a_bit_of_the_logits(
    pipelines: dict[tuple[EngineKind, tuple[int, ...]], Stages], kind: EngineKind, split: tuple[int, ...]
) -> None:
    """Tokens hide a difference until one lies near a border: an operation fused in one split only shows here."""
    ids = [(31 * number) % 97 for number in range(60)]
    for past_len, count in ((0, 3), (3, 1), (4, 40), (44, 1), (45, 15)):
        part = row(0, past_len, ids[past_len : past_len + count])
        whole, parts = pipelines[kind, SPLITS[0]].run(part), pipelines[kind, split].run(part)
        np.testing.assert_array_equal(whole, parts, err_msg=f"{count} tokens after {past_len}")
    for stages in (pipelines[kind, SPLITS[0]], pipelines[kind, split]):
        stages.release(0)


@pytest.mark.parametrize("kind", list(EngineKind))
def test_batch_mates_and_prompt_chunks_do_not_change_a_text(
    pipelines: dict[tuple[EngineKind, tuple[int, ...]], Stages], kind: EngineKind
) -> None:
    stages = pipelines[kind, (0, 2, 5)]
    prompts = {0: PROMPT, 1: [5], 2: [*range(40)], 3: [9, 9, 9]}
    solo = {seq: decode(stages, prompt, 20, seq) for seq, prompt in prompts.items()}
    texts = {seq: list(prompt) for seq, prompt in prompts.items()}
    fed = dict.fromkeys(prompts, 0)
    while any(len(texts[seq]) < len(prompts[seq]) + 20 for seq in texts):
        order = sorted(texts, key=lambda seq: (len(texts[seq]) * 7 + seq) % 5)
        rows = []
        for seq in order:
            chunk = texts[seq][fed[seq] : fed[seq] + 15]
            rows.append(row(seq, fed[seq], chunk, sample=fed[seq] + len(chunk) == len(texts[seq])))
        logits, at = stages.run(*rows), 0
        for each in rows:
            fed[each.seq] = each.past_len + len(each.tokens)
            if each.sample:
                texts[each.seq].append(int(logits[at].argmax()))
                at += len(each.sampled)
    stages.release(*prompts)
    assert {seq: text[len(prompts[seq]) :][:20] for seq, text in texts.items()} == solo


@pytest.mark.parametrize("kind", list(EngineKind))
@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_rollbacks_equal_plain_decoding(
    pipelines: dict[tuple[EngineKind, tuple[int, ...]], Stages],
    expected: list[int],
    kind: EngineKind,
    data: st.DataObject,
) -> None:
    """Drafts are wrong or right at random, and rows start before what was already fed: the text never changes."""
    stages = pipelines[kind, (0, 2, 5)]
    stages.release(1)
    ids, fed = list(PROMPT), 0
    truth = PROMPT + expected
    while len(ids) < len(PROMPT) + 40:
        fed = data.draw(st.sampled_from([fed, fed, fed, max(fed - 3, 0), 0]), label="past_len")
        known = ids[fed:]
        drafts = data.draw(st.integers(0, 8), label="drafts")
        right = data.draw(st.integers(0, drafts), label="right drafts")
        tokens = [*known, *truth[len(ids) : len(ids) + right], *[95] * (drafts - right)]
        each = row(1, fed, tokens, known=len(known))
        logits = stages.run(each)
        for number, index in enumerate(each.sampled):
            ids.append(int(logits[number].argmax()))
            if index + 1 < len(tokens) and tokens[index + 1] != ids[-1]:
                break
        fed = len(ids) - 1
    assert ids == truth[: len(ids)]


def test_a_long_run_of_rejected_drafts_is_compacted_and_fits_its_slot(
    pipelines: dict[tuple[EngineKind, tuple[int, ...]], Stages], expected: list[int]
) -> None:
    """Twelve rejected positions a step: more than the slot holds, unless masked ones are dropped."""
    stages = pipelines[EngineKind.STATEFUL, (0, 5)]
    ids = list(PROMPT)
    each = row(2, 0, [*ids, *[95] * 12], known=len(ids))
    for _ in range(55):
        ids.append(int(stages.run(each)[0].argmax()))
        each = row(2, len(ids) - 1, [ids[-1], *[95] * 12], known=1)
    stages.release(2)
    assert ids[len(PROMPT) :] == expected[:55]


def test_masking_and_trimming_rejected_positions_give_the_same_text(
    tiny_model: Path, pipelines: dict[tuple[EngineKind, tuple[int, ...]], Stages], expected: list[int]
) -> None:
    trimming = open_engine(
        EngineKind.STATEFUL, tiny_model, read_manifest(tiny_model), 0, 5, replace(EXACT, rewind=Rewind.TRIM)
    )
    ids = list(PROMPT)
    with closing(trimming):
        for _ in range(30):
            fed = len(ids) - 1 if len(ids) > len(PROMPT) else 0
            each = row(2, fed, [*ids[fed:], 95, 94, 93], known=len(ids) - fed)
            masked = pipelines[EngineKind.STATEFUL, (0, 5)].run(each)
            trimmed = trimming.run((each,), None)
            # Masked positions add exact zeros; where they stand moves sums between vector lanes.
            np.testing.assert_allclose(trimmed, masked, atol=1e-4)
            ids.append(int(trimmed[0].argmax()))
    pipelines[EngineKind.STATEFUL, (0, 5)].release(2)
    assert ids[len(PROMPT) :] == expected[:30]


@pytest.mark.parametrize("kind", list(EngineKind))
def test_a_gap_is_refused_and_a_reused_slot_starts_clean(
    pipelines: dict[tuple[EngineKind, tuple[int, ...]], Stages], expected: list[int], kind: EngineKind
) -> None:
    stages = pipelines[kind, (0, 5)]
    stages.run(row(3, 0, [1, 2, 3]))
    with pytest.raises(InvalidFrame, match="3 positions, its row starts at 5"):
        stages.run(row(3, 5, [1]))
    assert stages.run(row(3, 3, [4])).shape == (1, 96)
    stages.release(3, 3, 77)
    assert decode(stages, PROMPT, 10, seq=3) == expected[:10]


def test_case_65_streams_of_one_compiled_model_do_not_mix(
    pipelines: dict[tuple[EngineKind, tuple[int, ...]], Stages], expected: list[int]
) -> None:
    stages = pipelines[EngineKind.STATEFUL, (0, 5)]
    texts = {seq: list(PROMPT) for seq in range(4)}
    fed = dict.fromkeys(texts, 0)
    for turn in range(4 * 12):
        seq = (turn * 3) % 4
        texts[seq].append(int(stages.run(row(seq, fed[seq], texts[seq][fed[seq] :]))[-1].argmax()))
        fed[seq] = len(texts[seq]) - 1
    stages.release(*texts)
    assert [text[len(PROMPT) :] for text in texts.values()] == [expected[:12]] * 4


def test_case_53_resetting_one_stream_leaves_the_others_alone(
    pipelines: dict[tuple[EngineKind, tuple[int, ...]], Stages], expected: list[int]
) -> None:
    stages, ids = pipelines[EngineKind.STATEFUL, (0, 2, 5)], list(PROMPT)
    logits = stages.run(row(0, 0, ids))
    for turn in range(40):
        ids.append(int(logits[-1].argmax()))
        stages.run(row(1, 0, [turn, 5, 6]))
        stages.release(1)
        logits = stages.run(row(0, len(ids) - 1, ids[-1:]))
    stages.release(0)
    assert ids[len(PROMPT) :] == expected[:40]


@pytest.mark.parametrize("precision", list(KvPrecision))
def test_case_54_beam_idx_moves_the_kv_states_of_a_batch(tiny_model: Path, precision: KvPrecision) -> None:
    """Two beams change places: each goes on with the other's past."""
    fast = replace(EXACT, exact=False, kv_precision=precision)
    compiled = compile_for(build_chain(tiny_model, read_manifest(tiny_model), 0, 5).model, 3, fast).compiled
    request = compiled.create_infer_request()

    def infer(ids: list[list[int]], past: int, beams: list[int]) -> NDArray[np.float32]:
        tokens = len(ids[0])
        request.infer(
            {
                "input_ids": np.array(ids, np.int64),
                "attention_mask": np.ones((2, past + tokens), np.int64),
                "position_ids": np.tile(np.arange(past, past + tokens), (2, 1)),
                "beam_idx": np.array(beams, np.int32),
                "logits_indices": np.array([tokens - 1, 2 * tokens - 1], np.int64),
            }
        )
        return np.array(request.get_output_tensor(0).data)

    first, second = [5, 17, 60], [80, 2, 33]
    infer([first, second], 0, [0, 1])
    kept = infer([[7], [7]], 3, [0, 1])
    request.reset_state()
    infer([second, first], 0, [0, 1])
    swapped = infer([[7], [7]], 3, [1, 0])
    assert np.abs(kept[0] - kept[1]).max() > 0.5
    np.testing.assert_allclose(swapped, kept, atol=1e-4)


def test_pages_may_be_shared_between_sequences(
    pipelines: dict[tuple[EngineKind, tuple[int, ...]], Stages],
) -> None:
    """A prefix of whole blocks, computed once: the second sequence's table points at the first one's page."""
    stages, prefix = pipelines[EngineKind.PAGED, (0, 2, 5)], [(7 * i) % 90 for i in range(32)]
    alone = decode(stages, [*prefix, 4], 10, seq=1)
    stages.run(row(0, 0, prefix, sample=False))
    ids = [*prefix, 4]
    for _ in range(10):
        fed = 32 if len(ids) == 33 else len(ids) - 1
        shared = replace(row(2, fed, ids[fed:]), blocks=(12, 15, 11), start=START if fed == 32 else None)
        ids.append(int(stages.run(shared)[-1].argmax()))
    stages.release(0, 2)
    assert ids[33:] == alone


@pytest.mark.parametrize("precision", list(KvPrecision))
@pytest.mark.parametrize("kind", list(EngineKind))
def test_every_kv_precision_runs_and_stays_close(
    tiny_model: Path,
    pipelines: dict[tuple[EngineKind, tuple[int, ...]], Stages],
    kind: EngineKind,
    precision: KvPrecision,
) -> None:
    exact = pipelines[kind, (0, 5)].run(row(0, 0, PROMPT))
    pipelines[kind, (0, 5)].release(0)
    fast = replace(EXACT, exact=False, kv_precision=precision)
    with closing(open_engine(kind, tiny_model, read_manifest(tiny_model), 0, 5, fast)) as engine:
        engine.run((row(0, 0, PROMPT[:-1], sample=False),), None)
        logits = engine.run((row(0, 5, PROMPT[-1:]),), None)
        cosine = np.dot(exact[0], logits[0]) / np.linalg.norm(exact[0]) / np.linalg.norm(logits[0])
        assert cosine > 0.99
        assert engine.info.fused_attention == 3
        assert engine.info.execution_devices == ("CPU",)


def test_capacity_is_what_was_allocated(tiny_model: Path) -> None:
    manifest = read_manifest(tiny_model)
    small = replace(EXACT, kv_blocks=6)
    with closing(open_engine(EngineKind.PAGED, tiny_model, manifest, 0, 3, small)) as engine:
        assert (engine.capacity.blocks, engine.capacity.block_size, engine.capacity.shares_blocks) == (6, 32, True)
        # Exact mode has one page more, which is nobody's.
        assert engine.capacity.bytes == 7 * 32 * manifest.shape.kv_bytes_per_token(2, 4)
    with closing(open_engine(EngineKind.STATEFUL, tiny_model, manifest, 0, 3, EXACT)) as engine:
        assert (engine.capacity.sequences, engine.capacity.shares_blocks) == (4, False)


def test_a_slot_that_is_full_says_so(tiny_model: Path) -> None:
    tight = replace(EXACT, max_context=16, sequences=1)
    engine = open_engine(EngineKind.STATEFUL, tiny_model, read_manifest(tiny_model), 0, 5, tight)
    with closing(engine), pytest.raises(StageExhausted, match="holds"):
        engine.run((row(0, 0, [1] * 90),), None)


def test_stages_on_one_machine_are_not_pinned_to_the_same_core(tiny_model: Path) -> None:
    chain = build_chain(tiny_model, read_manifest(tiny_model), 0, 2)
    compiled = compile_for(chain.model, 1, EXACT).compiled
    assert compiled.get_property("ENABLE_CPU_PINNING") is False
    assert compiled.get_property("INFERENCE_NUM_THREADS") == 1


def test_a_device_that_is_missing_is_refused_without_falling_back(tiny_model: Path) -> None:
    gone = replace(EXACT, device=Device.GPU)
    with pytest.raises(ResourceError, match="no device GPU"):
        open_engine(EngineKind.PAGED, tiny_model, read_manifest(tiny_model), 0, 5, gone)


def test_the_npu_has_no_engine_yet_and_that_is_said(tiny_model: Path) -> None:
    npu = replace(EXACT, device=Device.NPU)
    with pytest.raises(UsageError, match="no engine of this version runs on the NPU"):
        open_engine(EngineKind.PAGED, tiny_model, read_manifest(tiny_model), 0, 5, npu)


@dataclass
class Port:
    """An input of a compiled paged graph, as far as its pages are concerned."""

    name: str
    partial_shape: ov.PartialShape

    def get_any_name(self) -> str:
        return self.name


@pytest.mark.parametrize("tokens", [16, 32])
def test_the_pages_have_the_size_that_the_device_chose(tokens: int) -> None:
    """GPU plugins keep fewer tokens in a page than the CPU's: a table for the wrong size reads unwritten memory."""
    keys = Port("key_cache.0", ov.PartialShape([-1, 2, 64, tokens]))
    values = Port("value_cache.0", ov.PartialShape([-1, 2, tokens, 64]))
    assert page_tokens([Port("input_ids", ov.PartialShape([-1])), keys, values]) == tokens


def test_blocks_that_do_not_exist_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        open_engine(EngineKind.PAGED, tiny_model, read_manifest(tiny_model), 0, 9, EXACT)
    with pytest.raises(ManifestError, match="embed"):
        open_engine(EngineKind.PAGED, tmp_path, read_manifest(tiny_model), 0, 1, EXACT)


def test_exact_mode_has_no_other_kv_precision() -> None:
    with pytest.raises(UsageError, match="f32"):
        EngineSettings(exact=True, kv_precision=KvPrecision.U8)
