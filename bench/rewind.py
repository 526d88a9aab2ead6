"""What a rejected draft costs the stateful engine: masked positions that stay in the state, against trimming it.

Two engines, alike but for their rewind, run the same steps of one token and three drafts in turn, with the same drafts
accepted. `mask_overhead`: a step of the masking engine over one of the trimming engine that had nothing to trim, which
attends to live positions only; `trim_cost`: what a step with trimming takes beyond that, both as shares of a step.
`difference`: the largest difference of any logit between the two in f32.
"""

from __future__ import annotations

import statistics
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.models import smollm2
from bench.prompts import prompts
from bench.report import Report
from shoal.manifest import Precision, read_manifest
from shoal.wire.messages import Row
from shoal_router.text.model import load_text_model
from shoal_stage.engine.interface import Engine
from shoal_stage.engine.open import open_engine
from shoal_stage.engine.settings import EngineKind, EngineSettings, Rewind

TITLE = "stateful engine: masking rejected drafts against trimming the state, cost and difference"

_DRAFTS = 3
_PAPER_STEPS = 48
"""Steps that make about the 128 tokens of the paper's answers."""

_ACCEPTED = (3, 1, 3, 0, 2, 3, 3, 1)
"""How many drafts of each step are right, over and over: two of three."""


def run(quick: bool) -> Report:
    """Measure; `quick` makes few steps."""
    rounds, long_steps = (1, 48) if quick else (8, 400)
    report = Report()
    settings = EngineSettings(sequences=1, threads=1)
    short, long = _Pair(smollm2().directory, settings), _Pair(smollm2().directory, settings)
    times, long_times = short.run(_PAPER_STEPS, rounds), long.run(long_steps, 1)
    exact = _Pair(smollm2(Precision.F32).directory, EngineSettings(sequences=1, threads=1, exact=True))
    exact.run(_PAPER_STEPS, 1)
    clean = statistics.median(times.clean)
    report.add("mask_overhead", statistics.median(times.masked) / clean - 1)
    report.add("mask_overhead_long", statistics.median(long_times.masked) / statistics.median(long_times.clean) - 1)
    report.add("trim_cost", statistics.median(times.trimmed) / clean - 1)
    report.add("difference", exact.difference)
    report.add("ids_that_differ", exact.ids_that_differ)
    report.add("step_ms", 1000 * clean)
    report.add("trim_ms", 1000 * (statistics.median(times.trimmed) - clean))
    report.notes += [
        f"{rounds} answers of {_PAPER_STEPS} steps of 1 + {_DRAFTS} tokens, positions {short.first} to {short.last}; "
        "the paper decodes 128 tokens",
        f"long: {long_steps} steps, positions {long.first} to {long.last}, where attention is half a step",
        f"{sum(_ACCEPTED)} of {_DRAFTS * len(_ACCEPTED)} drafts accepted; SmolLM2 in INT4, KV in f16, one thread",
        f"difference: F32 weights, f32 inference and KV, positions {exact.first} to {exact.last}; unrounded "
        f"{exact.difference:.1e}: masked positions add exact zeros, but move sums between vector lanes",
    ]
    return report


class _Times:
    """Seconds of single steps."""

    def __init__(self) -> None:
        self.masked: list[float] = []
        self.clean: list[float] = []
        self.trimmed: list[float] = []


class _Pair:
    """The two engines and one text that both run."""

    def __init__(self, directory: Path, settings: EngineSettings) -> None:
        self._directory = directory
        self._settings = settings
        self.difference = 0.0
        self.ids_that_differ = 0
        self.first = self.last = 0

    def run(self, steps: int, rounds: int) -> _Times:
        """Answer `rounds` times in `steps` steps on both engines."""
        manifest = read_manifest(self._directory)
        mask, trim = (
            open_engine(
                EngineKind.STATEFUL,
                self._directory,
                manifest,
                0,
                len(manifest.blocks),
                replace(self._settings, rewind=rewind),
            )
            for rewind in (Rewind.MASK, Rewind.TRIM)
        )
        text = load_text_model(self._directory)
        prompt = list(text.encode(" ".join(prompts()[:6]), add_special_tokens=False))
        times = _Times()
        with closing(mask), closing(trim):
            for _ in range(rounds):
                self._answer(mask, trim, prompt, steps, times)
        return times

    def _answer(self, mask: Engine, trim: Engine, prompt: list[int], steps: int, times: _Times) -> None:
        """Decode greedily on both engines; each leads in every other step."""
        ids = list(prompt)
        for engine in (mask, trim):
            engine.release((1,))
            logits, _ = _step(engine, 0, ids, known=len(ids))
        ids.append(int(logits[-1].argmax()))
        rejected = False
        for number in range(steps):
            right = _ACCEPTED[number % len(_ACCEPTED)]
            row = [ids[-1], *[7 + number % 50] * _DRAFTS]
            order = (mask, trim) if number % 2 else (trim, mask)
            found = {id(engine): _step(engine, len(ids) - 1, row, known=1) for engine in order}
            (masked, mask_s), (trimmed, trim_s) = found[id(mask)], found[id(trim)]
            times.masked.append(mask_s)
            (times.trimmed if rejected else times.clean).append(trim_s)
            self.difference = max(self.difference, float(np.abs(masked - trimmed).max()))
            self.ids_that_differ += int((masked.argmax(axis=1) != trimmed.argmax(axis=1)).sum())
            # What counts as accepted is set, so that the share of rejections is the same on every machine.
            ids += row[1 : 1 + right]
            ids.append(int(trimmed[right].argmax()))
            rejected = right < _DRAFTS
        self.first, self.last = len(prompt), len(ids)


def _step(engine: Engine, past: int, tokens: list[int], *, known: int) -> tuple[NDArray[np.float32], float]:
    row = Row(1, 0, past, tuple(tokens), known=known, sample=True)
    begun = time.perf_counter()
    logits = engine.run((row,), None)
    seconds = time.perf_counter() - begun
    return logits.copy(), seconds
