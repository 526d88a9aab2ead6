"""The chaos harness's judgement of answers: what it lets pass and what it does not."""

from __future__ import annotations

import asyncio
import json
import random
import re

import httpx
import pytest

from chaos import clients
from chaos.clients import Broke, Malformed, Question, Verdicts, ask, client
from chaos.schedule import GENTLE, GENTLE_STOP_SECONDS, PHASE_SECONDS, Blow, schedule

QUESTION = Question("Hello", 8, 0.0, 1)
ERROR = {"message": "lost", "type": "server_error", "param": None, "code": "generation_failed"}


def piece(text: str) -> dict:
    return {"choices": [{"text": text}]}


def events(*data: object, done: bool = True) -> bytes:
    lines = [f"data: {json.dumps(each)}\n\n" for each in data]
    return "".join([": keep-alive\n\n", *lines, "data: [DONE]\n\n" * done]).encode()


def http(body: bytes, status: int = 200) -> httpx.AsyncClient:
    transport = httpx.MockTransport(lambda request: httpx.Response(status, content=body))
    return httpx.AsyncClient(transport=transport, base_url="http://router")


async def test_a_complete_answer_is_its_text() -> None:
    assert await ask(http(events(piece("to"), piece("day"))), QUESTION) == "today"
    assert await ask(http(events(piece("to"), piece("day"))), QUESTION, leave_after=1) == "to"


@pytest.mark.parametrize(
    ("body", "status", "code", "text"),
    [
        (events(piece("to"), {"error": ERROR}), 200, "generation_failed", "to"),
        (json.dumps({"error": {**ERROR, "code": "pipeline_unavailable"}}).encode(), 503, "pipeline_unavailable", ""),
    ],
)
async def test_an_error_in_openais_form_is_one(body: bytes, status: int, code: str, text: str) -> None:
    with pytest.raises(Broke) as broke:
        await ask(http(body, status), QUESTION)
    assert (broke.value.code, broke.value.text) == (code, text)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (events(piece("to"), done=False), 200),
        (events(piece("to"), {"error": ERROR}, done=False), 200),
        (events({"error": "lost"}), 200),
        (b"data: {\n\n", 200),
        (b"oh no\n\n", 200),
        (b"Internal Server Error", 500),
        (b'{"detail": "no"}', 500),
        (b'{"error": {"message": "lost"}}', 500),
        (b'{"error": {"message": "", "type": "server_error", "param": null, "code": null}}', 500),
    ],
)
async def test_what_no_client_can_understand_is_malformed(body: bytes, status: int) -> None:
    with pytest.raises(Malformed):
        await ask(http(body, status), QUESTION)


@pytest.mark.parametrize(
    ("body", "finding"),
    [
        (events(piece("today")), None),
        (events(piece("to"), {"error": ERROR}), None),
        (events(piece("tomorrow")), "wrong text"),
        (events(piece("no"), {"error": ERROR}), "wrong text before an error"),
        (events(piece("today"), done=False), r"without \[DONE\]"),
    ],
)
async def test_a_client_finds_what_must_not_happen(monkeypatch, body: bytes, finding: str | None) -> None:
    monkeypatch.setattr(clients, "LEAVES", 0.0)
    stop, found = asyncio.Event(), Verdicts()

    def answer(request: httpx.Request) -> httpx.Response:
        stop.set()
        return httpx.Response(200, content=body)

    transport, made = httpx.MockTransport(answer), httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **options: made(transport=transport, base_url="http://router"))
    await client("http://router", {QUESTION: "today"}, random.Random(1), stop, found)
    assert bool(found.findings) == (finding is not None)
    if finding is not None:
        assert re.search(finding, found.findings[0])


async def test_a_connection_may_break_while_the_router_is_away_and_never_else(monkeypatch) -> None:
    stop, found = asyncio.Event(), Verdicts()

    def gone(request: httpx.Request) -> httpx.Response:
        stop.set()
        raise httpx.ConnectError("refused")

    transport, made = httpx.MockTransport(gone), httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **options: made(transport=transport, base_url="http://router"))
    await client("http://router", {QUESTION: "today"}, random.Random(1), stop, found)
    assert len(found.findings) == 1
    found.findings.clear()
    found.router_down.append([0.0, float("inf")])
    stop.clear()
    await client("http://router", {QUESTION: "today"}, random.Random(1), stop, found)
    assert found.findings == []


def test_the_same_seed_gives_the_same_blows_and_each_comes_before_any_comes_again() -> None:
    assert schedule(5, 300) == schedule(5, 300) != schedule(6, 300)
    first = [event.blow for event in schedule(5, 300)][: len(Blow)]
    assert set(first) == set(Blow)


def test_every_other_phase_ends_no_process_so_that_memory_can_be_watched() -> None:
    phases = [[event for event in schedule(7, 3600) if event.at // PHASE_SECONDS % 2 == odd] for odd in (0, 1)]
    assert {event.blow for event in phases[0]} == set(Blow)
    assert {event.blow for event in phases[1]} == set(GENTLE)
    assert max(event.seconds for event in phases[1] if event.blow is Blow.STOP_STAGE) <= GENTLE_STOP_SECONDS
