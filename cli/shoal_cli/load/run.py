"""Asks: `concurrency` users at a time, each sending its next request as soon as the last is answered.

Prompts are words drawn at random, different in every request from the first word on: a prefix cache must not answer for
the pipeline. How many words give the wanted tokens is learned from one request, whose usage says it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from shoal.errors import ShoalError, UsageError
from shoal_cli.client import Answer, RouterClient
from shoal_cli.load.figures import Point, Sample, point_of

_WORDS = (
    *("river", "stone", "window", "garden", "paper", "winter", "engine", "market", "letter", "bridge", "silver"),
    *("music", "forest", "morning", "kitchen", "doctor", "island", "pencil", "summer", "travel", "yellow", "basket"),
    *("thunder", "village", "copper", "harvest", "lantern", "mirror", "orchard", "puzzle"),
)
_PROBE_WORDS = 64
_CHAT = "/v1/chat/completions"

Heard = list[float]
"""Of each piece of an answer the seconds since its request."""


@dataclass(frozen=True, slots=True)
class Load:
    """What to ask for: `requests` answers of `max_tokens` at each point."""

    concurrencies: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    max_tokens: int
    requests: int
    seed: int = 0


async def run_load(client: RouterClient, model: str, load: Load, each: Callable[[Point], None]) -> list[Point]:
    """Measure every point, prompt by prompt, `each` as soon as it is there. Raises a ShoalError if nothing answers."""
    draw = random.Random(load.seed)
    words_for = await calibrate(client, model, draw)
    points = []
    for length in load.prompt_tokens:
        words = words_for(length)
        for concurrency in load.concurrencies:
            point = await _point(client, model, draw, load, words, concurrency)
            each(point)
            points.append(point)
    if all(point.failed == point.requests for point in points):
        raise UsageError(f"every request failed: {points[0].first_error}")
    return points


async def calibrate(client: RouterClient, model: str, draw: random.Random) -> Callable[[int], int]:
    """From a prompt's length in tokens, the template's included, to the words that make it."""
    short, long = [await ask(client, model, prompt_of(draw, words), 1) for words in (1, _PROBE_WORDS)]
    if error := short.error or long.error:
        raise UsageError(error)
    per_word = max((long.prompt_tokens - short.prompt_tokens) / (_PROBE_WORDS - 1), 0.1)
    fixed = short.prompt_tokens - per_word
    return lambda length: max(round((length - fixed) / per_word), 1)


async def _point(
    client: RouterClient, model: str, draw: random.Random, load: Load, words: int, concurrency: int
) -> Point:
    prompts = [prompt_of(draw, words) for _ in range(max(load.requests, concurrency))]
    samples: list[Sample] = []

    async def user() -> None:
        while prompts:
            samples.append(await ask(client, model, prompts.pop(), load.max_tokens))

    began = time.perf_counter()
    await asyncio.gather(*(user() for _ in range(concurrency)))
    return point_of(samples, concurrency=concurrency, seconds=time.perf_counter() - began)


async def ask(client: RouterClient, model: str, prompt: str, max_tokens: int, heard: Heard | None = None) -> Sample:
    """One answer; `heard` gets the pieces as they come. A failure is a sample, with the pieces that came before it."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_completion_tokens": max_tokens,
        "temperature": 0,
    }
    answer, pieces = Answer(), [] if heard is None else heard
    began = time.perf_counter()
    try:
        async for _ in client.stream(_CHAT, body, answer):
            pieces.append(time.perf_counter() - began)
    except ShoalError as error:
        return Sample(tuple(pieces), error=str(error))
    return Sample(tuple(pieces), answer.prompt_tokens, answer.completion_tokens)


def prompt_of(draw: random.Random, words: int) -> str:
    """So many words, at random."""
    return " ".join(draw.choices(_WORDS, k=words))
