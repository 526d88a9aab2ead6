"""A stage is lost in mid-answer: how soon that is noticed, how long the answers pause, whether they are still the same.

Two and three stages, eight streams at once, exact mode. At a random token a random stage is killed (`reset`: its kernel
tells the other side) or stopped (`silent`: its kernel still acknowledges what it is sent, as little is heard as after a
power cut), with a standby for each stage or with none. Every answer is compared with that of an undisturbed run.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from bench.latency import percentile
from bench.models import smollm2
from bench.prompts import prompts
from bench.report import Report
from bench.systems.survivor import STREAMS, Survivor, survivor
from shoal.wire.messages import SamplingParams
from shoal_router.generation import GenerationError, GenerationRequest
from shoal_router.text.model import load_text_model

TITLE = "a stage is lost: detection, pause with a standby and with a restart, identical answers"

_TRIAL_SECONDS = 240.0
_SEED = 7


@dataclass(slots=True)
class _Stream:
    """One answer as it comes in. `error`: what ended it instead."""

    prompt: tuple[int, ...]
    ids: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a stage is hit, and what takes its place."""

    number: signal.Signals
    standby: bool

    @property
    def loss(self) -> str:
        return "reset" if self.number is signal.SIGKILL else "silent"

    @property
    def cure(self) -> str:
        cure = "spare" if self.standby else "restart"
        return cure if self.loss == "reset" else f"{cure}_silent"


RESET, SILENT = _Kind(signal.SIGKILL, standby=True), _Kind(signal.SIGSTOP, standby=True)
RESTART = _Kind(signal.SIGKILL, standby=False)


@dataclass(slots=True)
class _Figures:
    """What all trials gave; seconds."""

    trials: int = 0
    lost: int = 0
    identical: int = 0
    replayed: int = 0
    detect: dict[str, list[float]] = field(default_factory=dict)
    pause: dict[str, list[float]] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)


def run(quick: bool) -> Report:
    """Measure; `quick` hits two stages once in each way."""
    model = smollm2().directory
    text = load_text_model(model)
    asked = [tuple(text.encode(prompt, add_special_tokens=False)) for prompt in prompts()[:STREAMS]]
    tokens, times = (16, 1) if quick else (24, 5)
    figures = _Figures()
    for stages in (2,) if quick else (2, 3):
        for kinds in ([RESET, SILENT], [RESTART]):
            with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
                uvloop.run(_measure(model, Path(folder), stages, kinds * times, asked, tokens, figures))
    report = Report()
    report.add("trials", figures.trials)
    report.add("streams", figures.trials * STREAMS)
    report.add("streams_lost", figures.lost)
    report.add("token_identical", figures.identical)
    for name, found in (("detect_s", figures.detect), ("pause_s", figures.pause)):
        for kind, values in found.items():
            report.add(f"{name}_{kind}_p50", percentile(values, 50))
            report.add(f"{name}_{kind}_p99", percentile(values, 99))
    report.add("replayed_tokens", figures.replayed)
    report.add("replayed_tokens_each_trial", figures.replayed / figures.trials)
    report.notes += [
        f"{STREAMS} streams of {tokens} greedy tokens in exact mode; prompts of about {len(asked[0])} tokens",
        "detect: from the signal to the end of the router's epoch; pause: from there to the next token of each stream "
        "that was not complete",
        "reset: SIGKILL; silent: SIGSTOP. spare: a standby that is loaded takes over; restart: the process is started "
        "again. The local runtime does both, and notices a silent process by itself (spare_silent)",
        "token_identical: trials in which all streams equal those of an undisturbed run",
        *figures.reasons,
    ]
    return report


async def _measure(
    model: Path,
    folder: Path,
    stages: int,
    kinds: list[_Kind],
    asked: list[tuple[int, ...]],
    tokens: int,
    figures: _Figures,
) -> None:
    rng = random.Random(_SEED + stages)
    async with survivor(model, folder, stages, stages if kinds[0].standby else 0) as system:
        undisturbed = [_Stream(prompt) for prompt in asked]
        await _answers(system, undisturbed, tokens)
        for kind in kinds:
            streams = [_Stream(prompt) for prompt in asked]
            answering = asyncio.create_task(_answers(system, streams, tokens))
            # Never so late that all of them may be complete before the loss is noticed.
            await _token(streams, rng.randrange(1, STREAMS * tokens * 2 // 3))
            before = len(system.moments.lost)
            victim = rng.choice([seat for seat in system.local.stages if system.local.stages.serves(seat)])
            pid = system.local.pid_of(victim.name)
            assert pid is not None
            struck = time.perf_counter()
            os.kill(pid, kind.number)
            await answering
            figures.trials += 1
            figures.lost += sum(bool(stream.error) for stream in streams)
            figures.reasons += [f"lost: {stream.error}" for stream in streams if stream.error]
            figures.identical += all(
                stream.ids == other.ids for stream, other in zip(streams, undisturbed, strict=True)
            )
            if len(system.moments.lost) == before:
                figures.reasons.append(f"trial {figures.trials}: every stream was complete before the loss was noticed")
            else:
                _add(figures, kind, streams, struck, system.moments.lost[before][0])
            await system.whole()


def _add(figures: _Figures, kind: _Kind, streams: list[_Stream], struck: float, lost: float) -> None:
    figures.detect.setdefault(kind.loss, []).append(lost - struck)
    for stream in streams:
        later = [at for at in stream.arrivals if at > lost]
        if later:
            figures.pause.setdefault(kind.cure, []).append(later[0] - lost)
            figures.replayed += len(stream.prompt) + len(stream.arrivals) - len(later)


async def _answers(system: Survivor, streams: list[_Stream], tokens: int) -> None:
    async with asyncio.timeout(_TRIAL_SECONDS):
        await asyncio.gather(*(_answer(system, stream, tokens) for stream in streams))


async def _answer(system: Survivor, stream: _Stream, tokens: int) -> None:
    request = GenerationRequest("bench", stream.prompt, SamplingParams(temperature=0.0), tokens)
    try:
        async for delta in system.steps.generate(request):
            stream.arrivals += [time.perf_counter()] * len(delta.tokens)
            stream.ids += delta.tokens
    except GenerationError as error:
        stream.error = str(error)


async def _token(streams: list[_Stream], number: int) -> None:
    """Wait until that many tokens came, over all streams."""
    while sum(len(stream.ids) for stream in streams) < number:  # noqa: ASYNC110 - one look a few steps is enough
        await asyncio.sleep(0.005)
