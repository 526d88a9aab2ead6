"""The two systems that most tables compare, on the same fixtures: the paper's way to speculate, and shoal's.

`paper_ring`: greedy, a draft model that is waited for before every verification, a fixed number of drafts, one chunk of
a sequence in flight. It runs on shoal's own stages, so that the ratio shows the way and nothing else. `shoal_ring`: as
`mode: Auto` does it. The target is the deep fixture in INT8, the draft model SmolLM2 in INT4, which computes the same
text but for quantisation (it keeps the 4-bit numbers of its file): its acceptance is measured, not set.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from bench.fixtures import DEPTH, deep_smollm2
from bench.models import BenchModel, smollm2
from bench.prompts import KINDS, prompts
from bench.workers import Worker, two_cores
from shoal.manifest import Precision
from shoal_router.text.model import TextModel, load_text_model

PLAIN: dict[str, Any] = {"speculation": {"mode": "Off"}}
"""Of a request to a paper ring: no drafts."""

FIXTURE = (
    f"The target is the deep fixture in INT8 (SmolLM2-135M with {DEPTH - 1} pass-through layers after each of its "
    "own), the draft model SmolLM2-135M in its file's own 4 bits; the paper has Llama 3.1 8B and Llama 3.2 1B, both in "
    "INT4."
)
CORES = (
    "Nodes are processes on the two cores of one machine, which the draft model and the router share with them; the "
    "paper's nodes are PCs, each with a GPU."
)
KV = "Stages run the paged engine, which overwrites rejected positions; the paper masks them."


def fixed(drafts: int) -> dict[str, Any]:
    """Of a request to a paper ring: always so many drafts."""
    return {"speculation": {"mode": "Fixed", "max_tokens": drafts, "max_chunks": 1}}


@dataclass(frozen=True, slots=True)
class Fixtures:
    """What the systems run, and where."""

    target: BenchModel
    draft: BenchModel
    text: TextModel
    cores: list[int]

    def prompts(self, count: int) -> list[list[int]]:
        """Ids of the first prompts, kinds in turn."""
        return [list(self.text.encode(prompt, add_special_tokens=False)) for prompt in prompts()[:count]]

    def kinds(self) -> dict[str, list[int]]:
        """Ids of one prompt of each kind."""
        return dict(zip(KINDS, self.prompts(len(KINDS)), strict=True))

    def unsplit(self, stack: ExitStack) -> Worker:
        """The whole model as one stage on one core, with its router: what the paper calls mono."""
        return self._ring(stack, self.cores[1:], 1)

    def paper_ring(self, stack: ExitStack, stages: int, *options: str, cores: list[int] | None = None) -> Worker:
        """The paper's way; how many drafts is said in each request."""
        draft = ("--draft", str(self.draft.directory), "--draft-waits")
        return self._ring(stack, cores or self.cores, stages, *draft, *options)

    def shoal_ring(self, stack: ExitStack, stages: int, *options: str, cores: list[int] | None = None) -> Worker:
        """shoal's way."""
        draft = ("--draft", str(self.draft.directory), "--speculative-mode", "Auto")
        return self._ring(stack, cores or self.cores, stages, *draft, *options)

    def _ring(self, stack: ExitStack, cores: list[int], stages: int, *options: str) -> Worker:
        placed = ",".join(str(cores[index % len(cores)]) for index in range(stages))
        # The index of finished answers would hand every round the answers of the one before.
        arguments = [str(self.target.directory), placed, "--no-prefix-cache", "--max-context", "512", *options]
        return stack.enter_context(Worker("bench.systems.whole_path", arguments, cores))


def fixtures() -> Fixtures:
    """Compiled once into the cache. Raises what compiling raises."""
    target = deep_smollm2(Precision.INT8)
    return Fixtures(target, smollm2(Precision.INT4, keep_stored=True), load_text_model(target.directory), two_cores())
