"""Grammars under the sampler: whatever the drafts, chunks and replays, the answer is that of plain decoding, and valid.

Logits are random numbers that depend on every id before them, as a real model's would; ends are made likely, so that
answers are short.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from shoal.errors import ManifestError
from shoal.wire.messages import Row, RowOutcome, SamplingParams, SequenceStart
from shoal_router.text.fake import EOS_ID, fake_tokenizer
from shoal_stage.sample.grammar import Grammars
from shoal_stage.sample.sampler import Sampler

VOCAB = 300  # more than the tokenizer's 259: families pad their heads
PROMPT = (70, 71, 72)
CLOSING = [3 + byte for byte in b'"}]0123456789']
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "tags": {"type": "array", "items": {"enum": ["a", "bb", "ccc"]}, "maxItems": 3},
        "n": {"type": "integer"},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
GRAMMAR = LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"whitespace_flexible": False})
TOKENIZER = LLTokenizer(fake_tokenizer().to_str(), n_vocab=VOCAB, eos_token=[EOS_ID])
DECODER = fake_tokenizer()


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    made = Grammars(lambda: TOKENIZER, VOCAB)
    yield made
    made.close()


def logits_after(ids: Sequence[int]) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(repr(tuple(ids)).encode()))
    logits = rng.normal(0, 1, VOCAB).astype(np.float32)
    logits[CLOSING] += 2
    logits[EOS_ID] += 4
    return logits


def logits_of(ids: Sequence[int], row: Row) -> np.ndarray:
    """What the engine gives for the row's sampled positions; `ids` are those before the row."""
    whole = (*ids[: row.past_len], *row.tokens)
    return np.stack([logits_after(whole[: row.past_len + index + 1]) for index in row.sampled])


class Decoder:
    """One sequence under a sampler, as the router would drive it."""

    def __init__(self, sampler: Sampler, params: SamplingParams, seq: int = 1) -> None:
        self.sampler, self.params, self.seq = sampler, params, seq
        self.ids = list(PROMPT)
        self.scores: list[object] = []
        self.started = False
        self.version = 0

    def run(self, row: Row, before: Sequence[int]) -> RowOutcome:
        self.sampler.prepare((row,))
        logits = logits_of(before, row) if row.sample else np.empty((0, VOCAB), np.float32)
        outcomes = self.sampler.sample((row,), logits)
        return outcomes[0] if outcomes else RowOutcome(row.seq, row.version, 0, ())

    def row(self, past_len: int, tokens: Sequence[int], known: int, sample: bool = True) -> Row:
        start = None
        if not self.started:
            start = SequenceStart(self.params, len(PROMPT), tuple(self.ids[:past_len]))
            self.started = True
        return Row(self.seq, self.version, past_len, tuple(tokens), known, sample, start=start)

    def begin(self, past_len: int = 0) -> RowOutcome:
        """Prefill, from a reused prefix of `past_len` ids."""
        self.started = False
        row = self.row(past_len, self.ids[past_len:], len(self.ids) - past_len)
        return self.take(self.run(row, self.ids))

    def take(self, outcome: RowOutcome) -> RowOutcome:
        self.ids += outcome.tokens
        self.scores += outcome.logprobs
        return outcome

    def step(self, drafts: Sequence[int] = ()) -> RowOutcome:
        return self.take(self.run(self.row(len(self.ids) - 1, (self.ids[-1], *drafts), 1), self.ids))

    @property
    def over(self) -> bool:
        return self.ids[-1] == EOS_ID

    @property
    def text(self) -> str:
        return str(DECODER.decode(self.ids[len(PROMPT) : -1]))


def plain(grammars: Grammars, params: SamplingParams) -> Decoder:
    decoder = Decoder(Sampler(grammars), params)
    decoder.begin()
    while not decoder.over:
        decoder.step()
    return decoder


def params_of(seed: int, **changes: object) -> SamplingParams:
    return replace(SamplingParams(seed=seed, grammar=GRAMMAR, logprobs=3), **changes)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_case_81_every_answer_is_valid_and_ends_only_where_the_grammar_does(grammars, seed, temperature) -> None:
    decoder = plain(grammars, params_of(seed, temperature=temperature, frequency_penalty=0.3))
    answer = json.loads(decoder.text)
    assert set(answer) <= {"name", "tags", "n"}
    assert len(answer["name"]) <= 5
    assert set(answer["tags"]) <= {"a", "bb", "ccc"}
    assert len(decoder.scores) == len(decoder.ids) - len(PROMPT)
    for score in decoder.scores:
        assert np.isfinite(score.logprob)
        assert all(np.isfinite(value) for _, value in score.top)


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 30), chance=st.randoms(use_true_random=False))
def test_drafts_right_and_wrong_rows_ahead_and_replays_change_nothing(grammars, seed, chance: random.Random) -> None:
    params = params_of(seed, temperature=chance.choice([0.0, 1.0]))
    expected = plain(grammars, params)
    truth = expected.ids
    decoder = Decoder(Sampler(grammars), params)
    decoder.begin()

    def guesses(at: int) -> list[int]:
        right = truth[at : at + chance.randint(0, 6)]
        return [chance.choice([token, token, token, chance.randrange(3, 259)]) for token in right if token != EOS_ID]

    while not decoder.over:
        if chance.random() < 0.2:  # preempted, or its stage was lost: computed again, in two chunks or from a prefix
            decoder.sampler.release((1,)) if chance.random() < 0.5 else setattr(decoder, "sampler", Sampler(grammars))
            decoder.started = False
            cut = chance.randrange(0, len(decoder.ids) - 1)
            if cut and chance.random() < 0.5:
                decoder.run(decoder.row(0, decoder.ids[:cut], cut, sample=False), decoder.ids)
            decoder.take(decoder.run(decoder.row(cut, decoder.ids[cut:], len(decoder.ids) - cut), decoder.ids))
            continue
        at = len(decoder.ids)
        drafts = guesses(at)
        ahead = guesses(at + len(drafts)) if drafts else []
        before = list(decoder.ids)
        outcome = decoder.step(drafts)
        if ahead:  # it left before the first row was answered
            row = decoder.row(at + len(drafts), ahead, 0)
            answer = decoder.run(row, [*before, *drafts])
            if list(outcome.tokens[: len(drafts)]) == drafts and outcome.tokens[len(drafts)] == ahead[0]:
                decoder.take(replace(answer, base=0))
    assert decoder.ids == truth
    assert decoder.scores[-1] == expected.scores[-1]


def test_rows_of_one_step_follow_their_own_grammars(grammars) -> None:
    sampler = Sampler(grammars)
    texts = {1: "(yes|no)", 2: "[0-9]{3}", 3: ""}
    rows = tuple(
        Row(seq, 0, 0, PROMPT, 3, True, start=SequenceStart(SamplingParams(seed=seq, grammar=grammar), 3))
        for seq, grammar in ((s, LLMatcher.grammar_from_regex(t) if t else "") for s, t in texts.items())
    )
    sampler.prepare(rows)
    outcomes = sampler.sample(rows, np.stack([logits_after(PROMPT)] * 3))
    drawn = [DECODER.decode(list(outcome.tokens)) for outcome in outcomes]
    assert drawn[0] in ("y", "n")
    assert drawn[1].isdigit()


def test_a_grammar_that_cannot_be_followed_ends_its_own_sequence_only(grammars) -> None:
    sampler = Sampler(grammars)
    rows = tuple(
        Row(seq, 0, 0, PROMPT, 3, True, start=SequenceStart(SamplingParams(seed=seq, grammar=grammar), 3))
        for seq, grammar in ((1, "start: nowhere"), (2, GRAMMAR))
    )
    sampler.prepare(rows)
    broken, fine = sampler.sample(rows, np.stack([logits_after(PROMPT)] * 2))
    assert (broken.tokens, broken.base) == ((), 3)
    assert "nowhere" in broken.error
    assert fine.tokens
    assert not fine.error


def test_committed_ids_that_the_grammar_forbids_are_said(grammars) -> None:
    decoder = Decoder(Sampler(grammars), params_of(1))
    decoder.ids += [3 + byte for byte in b'{"nix']
    assert "may not follow" in decoder.begin().error
    assert "may not follow" in decoder.step().error, "and it stays so"


def test_a_stage_without_a_vocabulary_says_so() -> None:
    assert "no tokenizer" in Decoder(Sampler(), params_of(1)).begin().error

    def load() -> LLTokenizer:
        raise ManifestError("tokenizer.json is missing")

    grammars = Grammars(load, VOCAB)
    assert "tokenizer.json is missing" in Decoder(Sampler(grammars), params_of(1)).begin().error
    grammars.close()
