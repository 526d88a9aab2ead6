"""Clients of the API: each asks one thing after the other, and judges every answer.

An answer that is complete must be the one that the same question gets when nothing happens; one that is not must end
with an error in OpenAI's form, and what came before it must be that answer's beginning. Nothing may take for ever.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

HUNG_SECONDS = 120.0
LEAVES = 0.1
"""Share of clients that close the connection in mid-answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request whose answer is always the same."""

    prompt: str
    max_tokens: int
    temperature: float
    seed: int

    def body(self) -> dict[str, Any]:
        """Of POST /v1/completions."""
        return {
            "model": "chaos",
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "stream": True,
        }


@dataclass(slots=True)
class Verdicts:
    """How requests ended, and what must not have happened."""

    ends: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    longest: float = 0.0
    router_down: list[list[float]] = field(default_factory=list)
    """[from, until] on the monotonic clock: connections may break then, as they do when a process is gone."""

    def may_break(self, began: float, ended: float) -> bool:
        """Whether the router was away at any time of a request."""
        return any(since <= ended and began <= until for since, until in self.router_down)


class Broke(Exception):
    """The answer ended with an error that the API told of; `text` came before."""

    def __init__(self, text: str, code: str) -> None:
        super().__init__(code)
        self.text = text
        self.code = code


class Malformed(Exception):
    """Something that no client of the API can be expected to understand."""


async def ask(http: httpx.AsyncClient, question: Question, leave_after: int | None = None) -> str:
    """The answer's text, as far as `leave_after` chunks. Raises Broke, Malformed or httpx.TransportError."""
    text: str = ""
    chunks = 0
    async with http.stream("POST", "/v1/completions", json=question.body()) as response:
        if response.status_code != 200:
            raise Broke("", _code(await response.aread(), str(response.status_code)))
        events = _events(response)
        async for data in events:
            if data == "[DONE]":
                return text
            try:
                chunk = json.loads(data)
            except ValueError:
                raise Malformed(f"an event that is no JSON: {data[:80]!r}") from None
            if "error" in chunk:
                code = _code(data.encode(), "error event")
                if [rest async for rest in events] != ["[DONE]"]:
                    raise Malformed("no [DONE] after an error event")
                raise Broke(text, code)
            text += str(chunk["choices"][0]["text"])
            chunks += 1
            if leave_after is not None and chunks >= leave_after:
                return text
    raise Malformed("the stream ended without [DONE]")


async def client(url: str, answers: dict[Question, str], rng: random.Random, stop: asyncio.Event, to: Verdicts) -> None:
    """Ask until told to stop; the request in hand is brought to its end."""
    async with httpx.AsyncClient(base_url=url, timeout=None, trust_env=False) as http:
        while not stop.is_set():
            question = rng.choice(list(answers))
            leave_after = rng.randint(1, 4) if rng.random() < LEAVES else None
            began = time.monotonic()
            try:
                async with asyncio.timeout(HUNG_SECONDS):
                    text = await ask(http, question, leave_after)
            except TimeoutError:
                _finding(to, "hung", f"no end after {HUNG_SECONDS:.0f} s: {question}")
            except Broke as error:
                to.ends[error.code] += 1
                if not answers[question].startswith(error.text):
                    to.findings.append(f"wrong text before an error: {question}: {error.text!r}")
                await asyncio.sleep(rng.uniform(0.2, 0.6))
            except Malformed as error:
                _finding(to, "malformed", str(error))
            except httpx.TransportError as error:
                if not to.may_break(began, time.monotonic()):
                    _finding(to, "broken", f"the connection broke although the router was there: {error!r}")
                to.ends["router gone"] += 1
                await asyncio.sleep(rng.uniform(0.2, 0.6))
            else:
                to.ends["complete" if leave_after is None else "left"] += 1
                right = answers[question]
                if text != right if leave_after is None else not right.startswith(text):
                    to.findings.append(f"wrong text: {question}: {text!r} for {right!r}")
            to.longest = max(to.longest, time.monotonic() - began)


async def _events(response: httpx.Response) -> AsyncIterator[str]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield line.removeprefix("data: ")
        elif line and not line.startswith(":"):
            raise Malformed(f"a line that is no event: {line[:80]!r}")


def _code(body: bytes, where: str) -> str:
    """The code of an error in OpenAI's form. Raises Malformed when it is not in that form."""
    try:
        error = json.loads(body)["error"]
        if set(error) != {"message", "type", "param", "code"} or not error["message"]:
            raise KeyError(str(error))
        return str(error["code"])
    except (ValueError, KeyError, TypeError) as wrong:
        raise Malformed(f"{where}: an error that is not in OpenAI's form: {body[:200]!r}") from wrong


def _finding(to: Verdicts, end: str, text: str) -> None:
    to.ends[end] += 1
    to.findings.append(text)
