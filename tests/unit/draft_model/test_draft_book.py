"""The two ends of the talk, without a network: the router's view of a text, and the draft process's book."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.wire.drafts import DraftText, Proposal
from shoal.wire.errors import InvalidFrame
from shoal_router.draft.ahead import Ahead
from shoal_router.draft.pace import Pace, least_survival
from shoal_stage.draft.book import DraftBook
from shoal_stage.engine.fake import FakeEngine, greedy_text

OWNER = 3
MOVES = ("tell", "take", "draft", "draft", "hear", "hear", "right", "wrong", "extend")


class Drafting:
    """A book over a FakeEngine."""

    def __init__(self, prefill_chunk: int = 16, **engine: int) -> None:
        self.engine = FakeEngine(0, 6, **engine)
        self.book = DraftBook(self.engine.capacity, 256, prefill_chunk)
        self.steps = 0

    def step(self) -> list[Proposal]:
        self.engine.release(self.book.releases())
        rows = self.book.plan()
        if not rows:
            return []
        self.steps += 1
        assert len({row.seq for row in rows}) == len(rows)
        return self.book.done(rows, self.engine.run(rows, None)).get(OWNER, [])

    def drain(self) -> list[Proposal]:
        proposals = []
        while self.book.plan():
            proposals += self.step()
        return proposals


def said(seq: int, version: int, base: int, tokens: list[int], confirmed: int, ahead: int = 4) -> DraftText:
    return DraftText(seq, version, base, tuple(tokens), confirmed, ahead, 0.0)


def ids(proposals: list[Proposal], seq: int = 1) -> list[int]:
    return [token for each in proposals if each.seq == seq for token in each.tokens]


def test_drafts_are_the_greedy_continuation_as_far_as_was_asked():
    drafting = Drafting()
    prompt = [*range(40)]
    drafting.book.update(OWNER, said(1, 0, 0, prompt, 40, ahead=5))
    proposals = drafting.drain()
    assert ids(proposals) == greedy_text(prompt, 5)
    assert [each.base for each in proposals] == [40, 41, 42, 43, 44]
    assert all(0 < each.confidence[0] <= 1 for each in proposals)
    assert drafting.steps == 3 + 4, "40 ids by chunks of 16, the last of which drafts"
    drafting.book.update(OWNER, said(1, 0, 0, [], 42, ahead=5))
    assert ids(drafting.drain()) == greedy_text(prompt, 7)[5:]


def test_a_text_that_turned_out_otherwise_is_cut_and_what_fits_is_kept_and_sent_again():
    drafting = Drafting()
    prompt = [1, 2, 3]
    drafting.book.update(OWNER, said(1, 0, 0, prompt, 3, ahead=4))
    drafted = ids(drafting.drain())
    kept = drafting.book.update(OWNER, said(1, 1, 3, drafted[:2], 5, ahead=2))
    assert kept is not None
    assert (kept.version, kept.base, list(kept.tokens)) == (1, 5, drafted[2:])
    assert len(kept.confidence) == len(kept.tokens)
    assert drafting.drain() == []
    other = [*prompt, drafted[0], 99]
    assert drafting.book.update(OWNER, said(1, 2, 4, [99], 5)) is None
    steps = drafting.steps
    assert ids(drafting.drain()) == greedy_text(other, 4)
    assert drafting.steps == steps + 4, "what was the same was not fed again"


def test_a_suffix_that_was_taken_back_is_forgotten():
    drafting = Drafting()
    drafting.book.update(OWNER, said(1, 0, 0, [1, 2, 3, 50, 51], 3))
    drafting.drain()
    assert drafting.book.update(OWNER, said(1, 1, 3, [], 3)) is None
    assert ids(drafting.drain()) == greedy_text([1, 2, 3], 4)


def test_drafting_stops_when_it_is_not_likely_any_more():
    drafting = Drafting()
    drafting.book.update(OWNER, DraftText(1, 0, 0, (1, 2, 3), 3, 30, 0.5))
    proposals = drafting.drain()
    survival = 1.0
    for each in proposals[:-1]:
        survival *= each.confidence[0]
        assert survival >= 0.5
    assert survival * proposals[-1].confidence[0] < 0.5
    drafting.book.update(OWNER, DraftText(1, 0, 0, (), 3 + len(proposals), 30, 0.5))
    assert drafting.drain(), "what became text is certain"


def test_more_texts_than_slots_wait_for_one_to_end():
    drafting = Drafting(sequences=2, blocks=64)
    for seq in (1, 2, 3):
        drafting.book.update(OWNER, said(seq, 0, 0, [seq] * 3, 3))
    first = drafting.drain()
    assert ids(first, 3) == []
    assert ids(first, 2) == greedy_text([2] * 3, 4)
    drafting.book.end(OWNER, [1, 77])
    assert ids(drafting.drain(), 3) == greedy_text([3] * 3, 4)
    drafting.book.leave(OWNER)
    drafting.step()
    assert drafting.book.live == frozenset()
    assert drafting.engine.live == frozenset()


def test_a_prompt_does_not_keep_the_others_from_drafting():
    drafting = Drafting(prefill_chunk=8)
    drafting.book.update(OWNER, said(1, 0, 0, [1, 2], 2, ahead=20))
    drafting.step()
    drafting.book.update(OWNER, said(2, 0, 0, [*range(60)], 60, ahead=1))
    for _ in range(8):
        assert ids(drafting.step(), 1), "one id a step, whatever the other's prompt"
    assert ids(drafting.drain(), 2) == greedy_text([*range(60)], 1)


def test_a_text_longer_than_the_context_or_with_unknown_ids_is_left_alone():
    drafting = Drafting(sequences=2, blocks=4, block_size=16)
    assert drafting.book.max_context == 32
    drafting.book.update(OWNER, said(1, 0, 0, [*range(30)], 30, ahead=9))
    drafting.book.update(OWNER, said(2, 0, 0, [4, 900], 2))
    proposals = drafting.drain()
    assert len(ids(proposals)) == 2
    assert ids(proposals, 2) == []


@pytest.mark.parametrize(
    "wrong", [said(1, 1, 9, [1], 4), said(1, 0, 0, [], 40), said(2, 0, 1, [5], 2)], ids=["gap", "unsaid", "new"]
)
def test_a_text_that_cannot_follow_is_refused(wrong):
    drafting = Drafting()
    drafting.book.update(OWNER, said(1, 0, 0, [1, 2, 3], 3))
    with pytest.raises(InvalidFrame):
        drafting.book.update(OWNER, wrong)


@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_whatever_crosses_on_the_way_the_router_only_ever_has_true_continuations(data):
    """Commits right and wrong, suffixes of others, messages late: drafts continue exactly what they are asked for."""
    drafting = Drafting(prefill_chunk=data.draw(st.sampled_from([2, 16])))
    ahead = Ahead(1, [5, 6, 7])
    to_draft: deque[DraftText] = deque()
    to_router: deque[Proposal] = deque()
    suffix: list[int] = []
    cache: dict[tuple[int, ...], int] = {}

    def successor(text: list[int]) -> int:
        return cache.setdefault(tuple(text), greedy_text(text, 1)[0])

    def check_drafts() -> None:
        text = [*ahead.text[: ahead.committed], *suffix]
        tokens, confidence = ahead.propose(suffix, 8)
        assert len(tokens) == len(confidence)
        for token in tokens:
            assert token == successor(text)
            text.append(token)

    for _ in range(data.draw(st.integers(1, 40))):
        match data.draw(
            st.sampled_from(["tell", "take", "draft", "draft", "hear", "hear", "right", "wrong", "extend"])
        ):
            case "tell":
                if (text := ahead.message(4, 0.0)) is not None:
                    to_draft.append(text)
            case "take" if to_draft:
                if (kept := drafting.book.update(OWNER, to_draft.popleft())) is not None:
                    to_router.append(kept)
            case "draft":
                to_router.extend(drafting.step())
            case "hear" if to_router:
                ahead.receive(to_router.popleft())
            case "right":
                text = ahead.text[: ahead.committed]
                token = suffix[0] if suffix else successor(text)
                ahead.commit([token])
                suffix = suffix[1:]
            case "wrong":
                ahead.commit([data.draw(st.integers(200, 255))])
                suffix = []
            case "extend":
                tokens, _ = ahead.propose(suffix, 2)
                suffix += tokens or [data.draw(st.integers(100, 103))]
        check_drafts()
    # Once everything has arrived, there are as many drafts as were asked for.
    for _ in range(3):
        if (text := ahead.message(4, 0.0)) is not None:
            to_draft.append(text)
        while to_draft:
            if (kept := drafting.book.update(OWNER, to_draft.popleft())) is not None:
                to_router.append(kept)
        to_router.extend(drafting.drain())
        while to_router:
            ahead.receive(to_router.popleft())
    check_drafts()
    assert len(ahead.text) + len(ahead.drafts) >= ahead.committed + 4


def test_after_a_lost_connection_everything_is_told_anew():
    ahead = Ahead(1, [5, 6, 7])
    assert ahead.message(4, 0.0) == said(1, 0, 0, [5, 6, 7], 3)
    assert ahead.message(4, 0.0) is None
    ahead.receive(Proposal(1, 0, 3, (8, 9), (0.5, 0.5)))
    ahead.commit([8])
    ahead.forget()
    assert ahead.propose([], 4) == ([], [])
    assert ahead.message(4, 0.0) == said(1, 1, 0, [5, 6, 7, 8], 4)
    ahead.restart([5, 6])
    assert ahead.message(4, 0.0) == said(1, 2, 2, [], 2)


def test_the_pace_follows_the_stream_and_bounds_what_a_draft_may_cost():
    pace = Pace()
    for number in range(200):
        pace.commit(2, number * 0.1)
    assert pace.rate == pytest.approx(20, rel=0.01)
    assert least_survival(pace.rate, 0.010) == pytest.approx(0.2, rel=0.01)
    assert least_survival(pace.rate, 0.0) == 0.05
    assert least_survival(pace.rate, 10.0) == 0.5
    pace.commit(2, 19.9)
    assert pace.rate == pytest.approx(20, rel=0.01)
