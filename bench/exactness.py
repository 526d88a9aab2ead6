"""Exact mode, greedy: 64 prompts x 128 tokens on 1, 2 and 3 stages and on OpenVINO GenAI, compared token by token.

All run the same F32 weights with f32 inference and KV and without dynamic quantisation. Where a system differs from
one stage, the logits of the two candidates at the first differing position are shown: a tie in f32 is the only excuse.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from bench.models import BenchModel, bench_cache, smollm2
from bench.peers.genai import export_monolith
from bench.prompts import prompts
from bench.report import Report
from bench.workers import Worker
from shoal.manifest import Precision, read_manifest
from shoal.wire.messages import Row
from shoal_router.text.model import load_text_model
from shoal_stage.engine.open import open_engine
from shoal_stage.engine.settings import EngineKind, EngineSettings

TITLE = "exact mode: are 1, 2, 3 stages and OpenVINO GenAI token-identical?"

_USERS = 32
_EXACT = ["INFERENCE_PRECISION_HINT=f32", "KV_CACHE_PRECISION=f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE=0"]

Answers = list[list[int]]


def run(quick: bool) -> Report:
    """Generate and compare; `quick` takes 8 prompts x 32 tokens."""
    model = smollm2(Precision.F32)
    text = load_text_model(model.directory)
    asked = prompts()[: 8 if quick else 64]
    tokens = 32 if quick else 128
    ids = [list(text.encode(prompt, add_special_tokens=False)) for prompt in asked]
    report = Report()
    reference: Answers = []
    for name, generate in _systems(model, tokens).items():
        answers = generate(ids)
        reference = reference or answers
        same = [one == other for one, other in zip(answers, reference, strict=True)]
        report.add(f"identical_to_one_stage.{name}", sum(same))
        for index, equal in enumerate(same):
            if not equal:
                report.notes.append(f"{name}: {_difference(model, ids[index], reference[index], answers[index])}")
    report.add("prompts", len(asked))
    report.add("tokens_each", tokens)
    return report


def _systems(model: BenchModel, tokens: int) -> dict[str, Callable[[list[list[int]]], Answers]]:
    cores = sorted(os.sched_getaffinity(0))

    def ours(stages: int) -> Callable[[list[list[int]]], Answers]:
        placed = ",".join(str(cores[index % len(cores)]) for index in range(stages))
        arguments = [str(model.directory), placed, "--exact", "--streams", str(_USERS)]

        def generate(ids: list[list[int]]) -> Answers:
            answers: Answers = []
            with Worker("bench.systems.whole_path", arguments, cores) as worker:
                for at in range(0, len(ids), _USERS):
                    reply = worker.ask({"prompts": ids[at : at + _USERS], "tokens": tokens}, deadline_s=900)
                    answers += reply["answers"]
            return answers

        return generate

    def genai(ids: list[list[int]]) -> Answers:
        monolith = export_monolith(model.directory, model.checkpoint, bench_cache())
        answers: Answers = []
        with Worker("bench.peers.genai_cb", [str(monolith), "256", *_EXACT], cores) as worker:
            for at in range(0, len(ids), _USERS):
                reply = worker.ask({"prompts": ids[at : at + _USERS], "tokens": tokens}, deadline_s=900)
                answers += reply["answers"]
        return answers

    return {
        "1 stage": ours(1),
        "2 stages": ours(2),
        "3 stages": ours(3),
        "OpenVINO GenAI": genai,
    }


def _difference(model: BenchModel, prompt: list[int], expected: list[int], found: list[int]) -> str:
    at = next(number for number, pair in enumerate(zip(expected, found, strict=True)) if pair[0] != pair[1])
    manifest = read_manifest(model.directory)
    settings = EngineSettings(exact=True, sequences=1)
    engine = open_engine(EngineKind.STATEFUL, model.directory, manifest, 0, len(manifest.blocks), settings)
    context = (*prompt, *expected[:at])
    logits = engine.run([Row(1, 0, 0, context, known=len(context), sample=True)], None)[0].astype(np.float64)
    engine.close()
    one, other = expected[at], found[at]
    return (
        f"token {at}: {one} (logit {logits[one]:.6f}) against {other} (logit {logits[other]:.6f}), "
        f"apart by {abs(logits[one] - logits[other]):.2e}"
    )
