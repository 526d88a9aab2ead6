"""Sampling: each filter against a naive reference, draws against their distribution, verification against decoding."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.wire.errors import InvalidFrame, StageFailed
from shoal.wire.messages import LARGEST_ADDED, REPETITION_PENALTIES, Row, RowOutcome, SamplingParams, SequenceStart
from shoal_stage.sample.draw import draw, greedy, logprob, uniform
from shoal_stage.sample.penalties import Context
from shoal_stage.sample.sampler import Sampler

VOCAB = 24
Logits = NDArray[np.float32]

params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.05]),
    top_k=st.sampled_from([0, 1, 3, VOCAB, 99]),
    min_p=st.sampled_from([0.0, 0.05, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.7, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    logit_bias=st.lists(
        st.tuples(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.0, 2.5, 100.0])),
        max_size=3,
        unique_by=lambda bias: bias[0],
    ).map(tuple),
    seed=st.integers(0, 2**64 - 1),
    logprobs=st.sampled_from([None, 0, 3]),
)
# Few distinct values: ties are the rule.
rows_of_logits = st.lists(st.integers(-6, 6), min_size=VOCAB, max_size=VOCAB).map(lambda v: np.array(v, np.float32) / 2)


def naive_kept(logits: Logits, p: SamplingParams) -> dict[int, float]:
    """Probabilities after temperature, top-k, top-p, min-p, by full sorts and Python floats."""
    ranked = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))
    weight = {i: math.exp((float(logits[i]) - float(logits[ranked[0]])) / p.temperature) for i in ranked}
    if p.top_k:
        ranked = ranked[: p.top_k]
    if p.top_p < 1:
        total, before, nucleus = sum(weight[i] for i in ranked), 0.0, []
        for i in ranked:
            if nucleus and before >= p.top_p * total - 1e-12:
                break
            nucleus.append(i)
            before += weight[i]
        ranked = nucleus
    ranked = [i for i in ranked if weight[i] >= p.min_p - 1e-12]
    total = sum(weight[i] for i in ranked)
    return {i: weight[i] / total for i in ranked}


def naive_adjusted(logits: Logits, p: SamplingParams, ids: list[int], prompt_len: int) -> Logits:
    out = logits.astype(np.float64)
    for token in set(ids):
        out[token] = out[token] / p.repetition_penalty if out[token] > 0 else out[token] * p.repetition_penalty
    answer = ids[prompt_len:]
    for token in set(answer):
        out[token] -= p.presence_penalty + p.frequency_penalty * answer.count(token)
    for token, bias in p.logit_bias:
        out[token] += bias
    return out.astype(np.float32)


class NoisyModel:
    """Logits that depend on the whole prefix, so that a wrong path shows."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def logits(self, prefix: list[int]) -> Logits:
        rng = np.random.default_rng([self.seed, *prefix])
        return rng.normal(0, 2, VOCAB).astype(np.float32)


def decode_plainly(
    model: NoisyModel, p: SamplingParams, prompt: list[int], total: int
) -> tuple[list[int], list[float]]:
    sampler, ids, scores = Sampler(), list(prompt), []
    row = Row(1, 0, 0, tuple(prompt), len(prompt), True, start=SequenceStart(p, len(prompt)))
    for _ in range(total):
        (outcome,) = sampler.sample((row,), model.logits(ids)[None])
        ids += outcome.tokens
        scores += [entry.logprob for entry in outcome.logprobs]
        row = Row(1, 0, len(ids) - 1, (ids[-1],), 1, True)
    return ids, scores


@given(rows_of_logits, params, st.integers(0, 500))
@settings(max_examples=150, deadline=None)
def test_a_drawn_id_is_one_that_the_filters_leave(logits: Logits, p: SamplingParams, position: int) -> None:
    token = draw(logits, p, position)
    if p.temperature == 0:
        assert token == int(np.argmax(logits))
    else:
        assert token in naive_kept(logits, p)


@given(rows_of_logits, params.filter(lambda p: p.temperature > 0))
@settings(max_examples=40, deadline=None)
def test_the_draw_inverts_the_cumulative_distribution_by_rising_id(logits: Logits, p: SamplingParams) -> None:
    kept = naive_kept(logits, p)
    for position in range(20):
        u, before = uniform(p.seed, position), 0.0
        for token in sorted(kept):
            if before - 1e-6 <= u <= before + kept[token] + 1e-6 and draw(logits, p, position) == token:
                break
            before += kept[token]
        else:
            raise AssertionError(f"u={u} does not lead to {draw(logits, p, position)}")


@pytest.mark.parametrize(
    "p",
    [
        SamplingParams(),
        SamplingParams(temperature=0.6, top_p=0.8),
        SamplingParams(top_k=5),
        SamplingParams(min_p=0.1, temperature=1.5),
    ],
)
def test_draws_follow_the_distribution(p: SamplingParams) -> None:
    logits = np.random.default_rng(3).normal(0, 1.5, VOCAB).astype(np.float32)
    kept, count = naive_kept(logits, p), 6000
    found = np.bincount([draw(logits, p, position) for position in range(count)], minlength=VOCAB)
    assert set(np.flatnonzero(found)) <= set(kept)
    squares = sum((found[i] - count * kept[i]) ** 2 / (count * kept[i]) for i in kept)
    degrees = len(kept) - 1
    assert squares < degrees + 4 * math.sqrt(2 * degrees) + 4


@pytest.mark.parametrize("temperature", [1e-7, 1e-39, 5e-324])
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 5, "top_p": 0.9}])
def test_a_temperature_of_nearly_nought_is_greedy(temperature: float, filters: dict[str, float]) -> None:
    """1 / temperature is infinite in f32 there, and infinity times nought is no number: it once ended the stage."""
    logits = np.random.default_rng(0).normal(0, 3, 1000).astype(np.float32)
    params = SamplingParams(temperature=temperature, **filters)  # type: ignore[arg-type]
    assert draw(logits, params, 7) == greedy(logits)


@pytest.mark.parametrize("penalty", REPETITION_PENALTIES)
@pytest.mark.parametrize("added", [-LARGEST_ADDED, LARGEST_ADDED])
def test_the_largest_penalties_leave_numbers(penalty: float, added: float) -> None:
    params = SamplingParams(
        repetition_penalty=penalty, presence_penalty=added, frequency_penalty=added, logit_bias=((1, added),)
    )
    context = Context(SequenceStart(params, 1), 0)
    context.extend([0, 1, 1])
    assert np.isfinite(context.adjust(np.array([-1e4, 1e4, 0.0], np.float32))).all()


def test_a_large_vocabulary_is_drawn_from_whole() -> None:
    """More ids than one run of weights, and a last run that is not full."""
    logits = np.random.default_rng(1).normal(0, 1, 1000).astype(np.float32)
    weights = np.exp(logits.astype(np.float64))
    cumulative = np.cumsum(weights / weights.sum())
    for position in range(300):
        token = draw(logits, SamplingParams(), position)
        u = uniform(0, position)
        assert cumulative[token] + 1e-6 >= u >= (cumulative[token - 1] if token else 0) - 1e-6


def test_the_random_number_has_53_bits_and_depends_on_seed_and_position_only() -> None:
    numbers = [uniform(seed, position) for seed in (0, 1, 2**64 - 1) for position in range(4000)]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= u < 1 for u in numbers)
    assert any(int(u * 2**53) & 1 for u in numbers)
    assert abs(np.mean(numbers) - 0.5) < 0.01
    assert uniform(7, 9) == uniform(7, 9) != uniform(9, 7)


def test_greedy_takes_the_lowest_id_of_equal_logits() -> None:
    assert greedy(np.array([1, 3, 3, 2], np.float32)) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_numbers_are_a_failed_stage(bad: float) -> None:
    with pytest.raises(StageFailed, match="not finite"):
        draw(np.array([0, bad, 1], np.float32), SamplingParams(), 0)


@given(rows_of_logits, st.integers(0, VOCAB - 1), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_logprobs_are_those_of_the_whole_distribution(logits: Logits, token: int, top: int) -> None:
    weights = [math.exp(float(x)) for x in logits]
    total = sum(weights)
    score = logprob(logits, token, top)
    assert score.logprob == pytest.approx(math.log(weights[token] / total), abs=1e-5)
    best = sorted(range(VOCAB), key=lambda i: (-float(logits[i]), i))[:top]
    assert [i for i, _ in score.top] == best
    assert [x for _, x in score.top] == pytest.approx([math.log(weights[i] / total) for i in best], abs=1e-5)


@given(params, st.integers(0, 99), st.data())
@settings(max_examples=60, deadline=None)
def test_case_p5_verified_drafts_give_the_text_of_plain_decoding(
    p: SamplingParams, model_seed: int, data: st.DataObject
) -> None:
    """Random drafts, chunk sizes, rollbacks and prompt chunks: ids and logprobs equal those of plain decoding."""
    model, total = NoisyModel(model_seed), 12
    prompt = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6))
    expected, scores = decode_plainly(model, p, prompt, total)
    sampler, ids, found_scores, fed = Sampler(), list(prompt), [], 0
    start: SequenceStart | None = SequenceStart(p, len(prompt))
    while len(ids) < len(expected):
        if fed < len(prompt) - 1 and data.draw(st.booleans(), label="only a chunk of the prompt"):
            upto = data.draw(st.integers(fed + 1, len(prompt) - 1), label="upto")
            row = Row(1, 0, fed, tuple(ids[fed:upto]), upto - fed, False, start=start)
            assert sampler.sample((row,), np.empty((0, VOCAB), np.float32)) == ()
            fed, start = upto, None
            continue
        wanted = expected[len(ids) : len(ids) + 4]
        drafts = [
            token if data.draw(st.booleans(), label="a good draft") else data.draw(st.integers(0, VOCAB - 1))
            for token in wanted[: data.draw(st.integers(0, 4), label="drafts")]
        ]
        again = data.draw(st.integers(0, min(fed, 2)), label="positions fed once more")
        fed -= again
        known = ids[fed:]
        tokens = [*known, *drafts]
        row = Row(1, 0, fed, tuple(tokens), len(known), True, start=start)
        if start is not None and fed:
            break
        logits = np.stack([model.logits((ids[:fed] + tokens)[: fed + i + 1]) for i in row.sampled])
        (outcome,) = sampler.sample((row,), logits)
        assert outcome.base == len(ids)
        assert 1 <= len(outcome.tokens) <= row.n_draft + 1
        fed, start = len(ids) + len(outcome.tokens) - 1, None
        ids += outcome.tokens
        found_scores += [entry.logprob for entry in outcome.logprobs]
    assert ids[: len(expected)] == expected
    if p.logprobs is not None:
        assert found_scores[: len(scores)] == pytest.approx(scores, abs=1e-5)


@given(params.filter(lambda p: p.temperature == 0), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_penalties_and_bias_equal_a_naive_reference(p: SamplingParams, model_seed: int) -> None:
    model, prompt = NoisyModel(model_seed), [1, 2, 2]
    ids, _ = decode_plainly(model, p, prompt, 10)
    for end in range(len(prompt), len(ids)):
        adjusted = naive_adjusted(model.logits(ids[:end]), p, ids[:end], len(prompt))
        assert adjusted[ids[end]] == pytest.approx(adjusted.max(), abs=1e-5)


def test_presence_and_frequency_look_at_the_answer_only() -> None:
    flat = np.zeros((1, VOCAB), np.float32)
    p = SamplingParams(temperature=0.0, presence_penalty=1.0)
    row = Row(1, 0, 0, (0, 0, 0), 3, True, start=SequenceStart(p, 3))
    assert Sampler().sample((row,), flat)[0].tokens == (0,)
    replayed = Row(1, 0, 0, (5, 0), 2, True, start=SequenceStart(p, 1))
    assert Sampler().sample((replayed,), flat)[0].tokens == (1,)


def test_batch_mates_do_not_change_a_text() -> None:
    model, p = NoisyModel(5), SamplingParams(seed=11, frequency_penalty=0.5)
    expected, _ = decode_plainly(model, p, [1, 2], 10)
    sampler, ids, other = Sampler(), [1, 2], [9]
    rows = [
        Row(1, 0, 0, (1, 2), 2, True, start=SequenceStart(p, 2)),
        Row(2, 0, 0, (9,), 1, True, start=SequenceStart(SamplingParams(seed=12), 1)),
    ]
    for step in range(10):
        pair = [model.logits(ids), model.logits(other)]
        order = [0, 1] if step % 2 else [1, 0]
        outcomes = sampler.sample([rows[i] for i in order], np.stack([pair[i] for i in order]))
        for outcome in outcomes:
            (ids if outcome.seq == 1 else other).extend(outcome.tokens)
        rows = [Row(1, 0, len(ids) - 1, (ids[-1],), 1, True), Row(2, 0, len(other) - 1, (other[-1],), 1, True)]
    assert ids == expected


def test_a_row_that_runs_ahead_is_verified_from_its_first_id() -> None:
    """Nothing is known: the row continues drafts that are still on their way."""
    logits = np.zeros((2, VOCAB), np.float32)
    logits[0, 4] = logits[1, 6] = 1
    sampler = Sampler()
    sampler.sample((Row(1, 0, 0, (1,), 1, False, start=SequenceStart(SamplingParams(temperature=0), 1)),), logits[:0])
    ahead = Row(1, 0, 1, (3, 4), 0, True)
    assert sampler.sample((ahead,), logits)[0].tokens == (4, 6)
    wrong = Row(1, 0, 1, (3, 5), 0, True)
    outcome = sampler.sample((wrong,), logits)[0]
    assert (outcome.base, outcome.tokens) == (2, (4,))


class Ahead:
    """A router that keeps several rows in flight: it learns what the sampler drew only when it takes the reply."""

    def __init__(self, sampler: Sampler, model: NoisyModel, p: SamplingParams, prompt: list[int]) -> None:
        self.sampler, self.model = sampler, model
        self.ids, self.guesses, self.version = list(prompt), [], 0
        self.scores: list[float] = []
        self.awaited = 0
        self.replies: list[RowOutcome] = []
        self.start: SequenceStart | None = SequenceStart(p, len(prompt))

    def send(self, drafts: list[int]) -> None:
        fed = [] if self.awaited else self.ids if self.start else self.ids[-1:]
        past_len = len(self.ids) + len(self.guesses) - len(fed)
        row = Row(1, self.version, past_len, (*fed, *drafts), len(fed), True, start=self.start)
        prefix = [*self.ids, *self.guesses, *drafts]
        logits = np.stack([self.model.logits(prefix[: past_len + index + 1]) for index in row.sampled])
        self.replies += self.sampler.sample((row,), logits)
        self.guesses += drafts
        self.start = None
        self.awaited += 1

    def take(self) -> None:
        reply = self.replies.pop(0)
        if reply.version != self.version:
            return
        self.awaited -= 1
        assert reply.base == len(self.ids)
        for token in reply.tokens:
            right = not self.guesses or self.guesses.pop(0) == token
            self.ids.append(token)
        self.scores += [entry.logprob for entry in reply.logprobs]
        if not right:
            self.version, self.guesses, self.awaited = self.version + 1, [], 0


def text_with_rows_ahead(
    sampler: Sampler, model: NoisyModel, p: SamplingParams, prompt: list[int], expected: list[int], dice: random.Random
) -> tuple[list[int], list[float]]:
    router, depth, accuracy = Ahead(sampler, model, p, prompt), dice.randint(1, 4), dice.choice([0.3, 0.9])
    while len(router.ids) < len(expected):
        if len(router.replies) < depth and dice.random() < 0.7:
            known = len(router.ids) + len(router.guesses)
            right = expected[known : known + dice.randint(bool(router.awaited), 4)]
            drafts = [token if dice.random() < accuracy else dice.randrange(VOCAB) for token in right]
            if drafts or not router.awaited:
                router.send(drafts)
        elif router.replies:
            router.take()
    return router.ids, router.scores


@given(params, st.integers(0, 99), st.integers(0, 2**32))
@settings(max_examples=80, deadline=None)
def test_case_p5_any_depth_and_any_drafts_give_the_text_of_plain_decoding(
    p: SamplingParams, model_seed: int, seed: int
) -> None:
    """Penalties, bias, seeds and logprobs, with one row in flight or four: mesh-llm#1408 lost its history at two."""
    model, dice = NoisyModel(model_seed), random.Random(seed)
    prompt = [dice.randrange(VOCAB) for _ in range(dice.randint(1, 5))]
    expected, scores = decode_plainly(model, p, prompt, 14)
    ids, found = text_with_rows_ahead(Sampler(), model, p, prompt, expected, dice)
    assert ids[: len(expected)] == expected
    if p.logprobs is not None:
        assert found[: len(scores)] == pytest.approx(scores, abs=1e-5)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "        context.rewind(row.past_len)\n        context.extend(tokens[:first])",
            "        context.extend(tokens[:first])",
        ),
        ("        context.extend(tokens[:first])\n        for", "        for"),
        ("            context.extend(tokens[index : index + 1])\n", ""),
        ("token != tokens[index + 1]:", "token == tokens[index + 1]:"),
        ("row.past_len + index + 1)", "index + 1)"),
        ("adjusted = context.adjust(logits[number])", "adjusted = context.adjust(logits[0])"),
    ],
)
def test_rows_ahead_notice_when_a_line_of_the_verification_is_removed(old: str, new: str, mutated) -> None:
    params = SamplingParams(seed=3, frequency_penalty=0.9, repetition_penalty=1.4)
    with mutated("shoal_stage.sample.sampler", old, new) as load:
        sampler = load("sampler").Sampler
        for seed in range(60):
            model, dice = NoisyModel(seed), random.Random(seed)
            expected, _ = decode_plainly(model, params, [1, 2, 3], 14)
            try:
                ids, _ = text_with_rows_ahead(sampler(), model, params, [1, 2, 3], expected, dice)
            except Exception:  # noqa: BLE001 - whatever the line kept from happening
                return
            if ids[: len(expected)] != expected:
                return
    pytest.fail("60 texts were right without it")


def test_a_released_sequence_is_forgotten_and_must_be_started_anew() -> None:
    sampler, logits = Sampler(), np.zeros((1, VOCAB), np.float32)
    sampler.sample((Row(1, 0, 0, (1,), 1, True, start=SequenceStart(SamplingParams(), 1)),), logits)
    sampler.release((1, 1, 99))
    assert sampler.live == frozenset()
    with pytest.raises(InvalidFrame, match="never started"):
        sampler.sample((Row(1, 0, 1, (1,), 1, True),), logits)


def test_penalties_need_the_history_of_a_reused_prefix() -> None:
    start = SequenceStart(SamplingParams(temperature=0, repetition_penalty=2.0), 3)
    row = Row(1, 0, 2, (1,), 1, True, start=start)
    with pytest.raises(InvalidFrame, match="2 ids"):
        Sampler().sample((row,), np.zeros((1, VOCAB), np.float32))
    known = Row(1, 0, 2, (1,), 1, True, start=SequenceStart(start.params, 3, history=(0, 2)))
    logits = np.full((1, VOCAB), 1, np.float32)
    assert Sampler().sample((known,), logits)[0].tokens == (3,)
