"""Grammars on the last stage: which ids may come next, worked out while others compute.

    row comes ──> follow (this thread) ──┐ while the engine computes: a mask for each drafted position
    id drawn  ──> expect (this thread) ──┤ while the result travels and the stages before compute: the next row's mask
                                         └──> masks, which the sampler waits for when the logits are there

So a mask costs the step nothing unless it takes longer than the whole round. One thread owns the tokenizer and every
matcher; llguidance lets go of the GIL while it works.

A grammar's state is a function of the answer's ids alone. It is kept as the path of ids that the matcher has consumed;
a row goes back to where its own ids differ and on from there. That is all that drafts, rows that run ahead, replay
after a lost stage and reused prefixes need: below a row's first id the path is always the answer, since what a row
drew was put there (`expect`) before the next row came.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from shoal.errors import ShoalError
from shoal.grammar import first_line, matcher_of
from shoal.wire.messages import Row, SequenceStart

Forbidden = NDArray[np.bool_]
"""True for each id of the vocabulary that may not come next."""

LONGEST_WAIT = 10.0
"""Seconds that a step waits for masks: grammars that take anything like it were refused by the router."""

_KEPT_GRAMMARS = 32

_log = logging.getLogger(__name__)


class GrammarBroken(ShoalError):
    """The grammar cannot be followed any further: its sequence is over, and no other."""


@dataclass(slots=True)
class Guide:
    """One sequence's way through its grammar; the grammar thread's own.

    `path`: the answer's ids that `matcher` has consumed, the first at position `first`. `masks`: what may not follow so
    many ids of the path. `broken`: why nothing may any more.
    """

    matcher: LLMatcher
    first: int
    path: list[int] = field(default_factory=list)
    masks: dict[int, Forbidden] = field(default_factory=dict)
    broken: str = ""

    def follow(self, row: Row, vocab_size: int) -> list[Forbidden]:
        """A mask for each sampled position of the row, up to the first draft that the grammar forbids."""
        if self.broken:
            raise GrammarBroken(self.broken)
        prompt = max(self.first - row.past_len, 0)  # that many of the row's ids belong to the prompt
        ids = row.tokens[prompt:]
        at = row.past_len + prompt - self.first
        if at > len(self.path):
            return []  # behind a draft that proved wrong: the row is stale, and nobody reads what it draws
        same = 0
        while same < len(ids) and at + same < len(self.path) and self.path[at + same] == ids[same]:
            same += 1
        self._back(at + same)
        committed = ids[same : max(row.known - prompt, same)]
        if (done := self._go(committed)) < len(committed):
            self._break(f"id {committed[done]} may not follow {len(self.path)} ids of the answer")
        for length in [length for length in self.masks if length < at]:
            del self.masks[length]
        masks: list[Forbidden] = []
        for index in row.sampled:
            length = row.past_len + index + 1 - self.first
            if length > len(self.path) and not self._go(row.tokens[index : index + 1]):
                break
            masks.append(self._mask(length, vocab_size))
        return masks

    def expect(self, position: int, token: int, vocab_size: int) -> None:
        """The id was drawn for `position`: it will be the next row's first."""
        at = position - self.first
        if self.broken or at > len(self.path):
            return
        if at < len(self.path) and self.path[at] != token:
            self._back(at)
        if at < len(self.path) or self._go((token,)):
            self._mask(at + 1, vocab_size)

    def _go(self, tokens: Sequence[int]) -> int:
        """Consume the ids as far as the grammar allows; returns how many."""
        done = self.matcher.try_consume_tokens(list(tokens)) if tokens else 0
        self._check()
        self.path.extend(tokens[:done])
        return done

    def _back(self, length: int) -> None:
        """Forget what lies behind the first `length` ids of the path."""
        if length < len(self.path):
            self.matcher.rollback(len(self.path) - length)
            self._check()
            del self.path[length:]
        for beyond in [known for known in self.masks if known > length]:
            del self.masks[beyond]

    def _mask(self, length: int, vocab_size: int) -> Forbidden:
        """What is forbidden behind `length` ids of the path."""
        mask = self.masks.get(length)
        if mask is None:
            self._back(length)
            packed = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
            self._check()
            mask = np.unpackbits(~packed, count=vocab_size, bitorder="little").view(np.bool_)
            if mask.all():
                self._break(f"no id may follow {length} ids of the answer")
            self.masks[length] = mask
        return mask

    def _check(self) -> None:
        if self.matcher.is_error():
            self._break(first_line(self.matcher.get_error()))

    def _break(self, reason: str) -> None:
        self.broken = f"the answer cannot follow its grammar any further: {reason}"
        raise GrammarBroken(self.broken)


class Grammars:
    """The grammar thread. Its tokenizer is read in the background as soon as it is made."""

    def __init__(self, load: Callable[[], LLTokenizer], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._tokenizer = self._thread.submit(load)
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def close(self) -> None:
        """Drop what is queued."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def begin(self, start: SequenceStart, past_len: int) -> Future[Guide]:
        """Compile a sequence's grammar, and bring it to where the sequence's first row begins."""
        return self._thread.submit(self._begin, start, past_len)

    def follow(self, guide: Future[Guide], row: Row) -> Future[list[Forbidden]]:
        """See Guide.follow."""
        return self._thread.submit(self._follow, guide, row)

    def expect(self, guide: Future[Guide], position: int, token: int) -> None:
        """See Guide.expect."""
        self._thread.submit(self._expect, guide, position, token)

    # ---- on the thread

    def _begin(self, start: SequenceStart, past_len: int) -> Guide:
        try:
            tokenizer = self._tokenizer.result()
        except ShoalError as error:
            raise GrammarBroken(f"the last stage knows no vocabulary: {error}") from None
        grammar = start.params.grammar
        compiled = self._compiled.get(grammar) or matcher_of(tokenizer, grammar)
        if compiled.is_error():
            raise GrammarBroken(f"the last stage cannot use the grammar: {first_line(compiled.get_error())}")
        self._compiled[grammar] = compiled
        self._compiled.move_to_end(grammar)
        if len(self._compiled) > _KEPT_GRAMMARS:
            self._compiled.popitem(last=False)
        guide = Guide(compiled.deep_copy(), start.prompt_len)
        answer = start.history[start.prompt_len : past_len]
        if answer:
            history = Row(0, 0, start.prompt_len, answer, len(answer), sample=False)
            guide.follow(history, self._vocab_size)
        return guide

    def _follow(self, guide: Future[Guide], row: Row) -> list[Forbidden]:
        return guide.result().follow(row, self._vocab_size)

    def _expect(self, guide: Future[Guide], position: int, token: int) -> None:
        try:
            guide.result().expect(position, token, self._vocab_size)
        except GrammarBroken:
            return  # the guide remembers why: the next row's `follow` says it
        except Exception as error:  # noqa: BLE001 - nobody waits for this; the next row meets it again, or not at all
            _log.warning("a mask could not be worked out ahead", exc_info=error)


def masks_of(coming: Future[list[Forbidden]]) -> list[Forbidden]:
    """Wait for a row's masks. Raises GrammarBroken."""
    try:
        return coming.result(LONGEST_WAIT)
    except FutureTimeout:
        raise GrammarBroken(f"a mask takes longer than {LONGEST_WAIT:.0f} s: use a simpler grammar") from None
    except GrammarBroken:
        raise
    except Exception as error:  # what the library throws must end the sequence that asked for it, not the stage
        _log.exception("a grammar met a defect")
        raise GrammarBroken(f"the grammar met a defect: {type(error).__name__}: {first_line(error)}") from error
