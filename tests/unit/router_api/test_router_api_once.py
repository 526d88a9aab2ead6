"""Idempotency-Key: the same request never runs twice at the same time."""

from __future__ import annotations

import asyncio

import pytest

from shoaltest.waiting import until

BODY = {"model": "fake", "prompt": "hi"}


@pytest.fixture
def held(bench):
    """The model waits in mid-answer until the event is set."""
    bench.generator.gate = asyncio.Event()
    bench.generator.gate_after = 1
    return bench.generator.gate


async def send(bench, key, **kwargs):
    return await bench.client.post("/v1/completions", json=BODY, headers={"Idempotency-Key": key}, **kwargs)


async def test_case_12_a_request_that_still_runs_is_not_run_again_and_then_may_be(bench, held):
    first = asyncio.create_task(send(bench, "k1"))
    await until(lambda: bench.generator.running)
    again = await send(bench, "k1")
    assert again.status_code == 409
    assert again.headers["retry-after"] == "1"
    assert (again.json()["error"]["code"], again.json()["error"]["param"]) == ("request_in_progress", "Idempotency-Key")
    assert bench.generator.running == 1
    held.set()
    assert (await first).status_code == 200
    assert (await send(bench, "k1")).status_code == 200


async def test_other_keys_and_requests_without_one_run_beside_it(bench, held):
    tasks = [asyncio.create_task(send(bench, "k1"))]
    await until(lambda: bench.generator.running)
    tasks += [asyncio.create_task(send(bench, "k2")), asyncio.create_task(bench.complete())]
    await until(lambda: bench.generator.running == 3)
    held.set()
    assert [answer.status_code for answer in await asyncio.gather(*tasks)] == [200] * 3


async def test_a_key_is_free_again_after_an_error(bench):
    bench.generator.fails_at_start = RuntimeError("no")
    assert (await send(bench, "k1")).status_code == 500
    bench.generator.fails_at_start = None
    assert (await send(bench, "k1")).status_code == 200


@pytest.mark.parametrize("key", ["", "x" * 256])
async def test_a_key_that_cannot_be_one_is_refused_by_name(bench, key):
    refused = await send(bench, key)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "Idempotency-Key"
