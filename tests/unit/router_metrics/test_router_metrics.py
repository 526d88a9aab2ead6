"""What the router counts: requests by their end, steps by stage, recoveries, refusals; and the port that shows it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from shoal.errors import StageError
from shoal.wire.errors import DigestMismatch, InvalidFrame, StageUnreachable
from shoal.wire.messages import SamplingParams, StageTiming
from shoal.wire.refused import REASONS, RefusedPeers, reason_of
from shoal_router.api.app import create_app
from shoal_router.api.fake import FakeGenerator
from shoal_router.fleet.fleet import Fleet
from shoal_router.generation import GenerationFailed, GenerationRequest, PipelineUnavailable, QueueFull
from shoal_router.metrics.bubble import Bubble
from shoal_router.metrics.families import Families
from shoal_router.metrics.levels import Levels
from shoal_router.metrics.listen import metrics_app
from shoal_router.metrics.pipeline import PipelineMetrics
from shoal_router.metrics.requests import MeteredGenerator
from shoal_router.pipeline.fake import FakeOpener
from shoal_router.schedule.speculation import SourceStats, SpeculationStats
from shoal_router.settings import ApiSettings
from shoal_router.step_loop import StepLoop, StepLoopSettings
from shoal_router.text.fake import fake_text_model
from shoal_router.watch.lost import LostStages
from shoaltest.waiting import until

GREEDY = SamplingParams(temperature=0.0)
QUICK = StepLoopSettings(prefill_chunk=16, backoff=0.001, longest_backoff=0.01, recovery_seconds=0.05)


def ask(prompt=(1, 2, 3), max_tokens=4, **kwargs) -> GenerationRequest:
    return GenerationRequest("r", tuple(prompt), GREEDY, max_tokens, **kwargs)


@pytest.fixture
def families() -> Families:
    return Families()


def value(families: Families, name: str, **labels: str) -> float:
    return families.registry.get_sample_value(name, labels) or 0.0


async def drain(generator, request) -> list[int]:
    return [token async for delta in generator.generate(request) for token in delta.tokens]


# ---- requests


def metered(families: Families, **kwargs) -> tuple[MeteredGenerator, FakeGenerator]:
    fake = FakeGenerator(script=lambda _: range(10, 20), **kwargs)
    clock = iter(range(1000))
    return MeteredGenerator(fake, families, lambda: next(clock) / 4), fake


async def test_an_answer_is_counted_with_its_tokens_and_times(families):
    generator, _ = metered(families, cached_tokens=2)
    assert await drain(generator, ask()) == [10, 11, 12, 13]
    assert value(families, "shoal_requests_total", finish_reason="length") == 1
    assert value(families, "shoal_prompt_tokens_total") == 3
    assert value(families, "shoal_generated_tokens_total") == 4
    assert value(families, "shoal_prefix_hit_tokens_total") == 2
    assert value(families, "shoal_request_ttft_seconds_sum") == 0.25
    assert value(families, "shoal_inter_token_seconds_count") == 3
    assert value(families, "shoal_inter_token_seconds_sum") == 0.75


async def test_tokens_that_come_together_share_their_time(families):
    generator, _ = metered(families, per_delta=2)
    await drain(generator, ask())
    assert value(families, "shoal_inter_token_seconds_sum") == 0.125


async def test_a_stop_string_ends_an_answer_from_outside(families):
    generator, fake = metered(families)
    async with aclosing(generator.generate(ask())) as deltas:
        await anext(deltas)
    assert value(families, "shoal_requests_total", finish_reason="stop") == 1
    assert fake.running == 0


async def test_a_last_delta_that_is_all_that_is_wanted_keeps_its_reason(families):
    generator, _ = metered(families)
    async with aclosing(generator.generate(ask())) as deltas:
        async for delta in deltas:
            if delta.finish is not None:
                break
    assert value(families, "shoal_requests_total", finish_reason="length") == 1
    assert value(families, "shoal_requests_total", finish_reason="stop") == 0


async def test_a_client_that_leaves_is_counted_as_cancelled(families):
    generator, fake = metered(families, gate=asyncio.Event(), gate_after=1)
    task = asyncio.create_task(drain(generator, ask()))
    await until(lambda: fake.running)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert value(families, "shoal_requests_total", finish_reason="cancelled") == 1


async def test_an_answer_that_breaks_off_is_an_error(families):
    generator, _ = metered(families, fails_after=(2, GenerationFailed("lost")))
    with pytest.raises(GenerationFailed):
        await drain(generator, ask())
    assert value(families, "shoal_requests_total", finish_reason="error") == 1


@pytest.mark.parametrize("error", [QueueFull("full", 1.0), PipelineUnavailable("none", 1.0)])
async def test_what_is_refused_before_it_begins_is_no_request(families, error):
    generator, _ = metered(families, fails_at_start=error)
    with pytest.raises(type(error)):
        await drain(generator, ask())
    assert b"shoal_requests_total{" not in generate_latest(families.registry)


# ---- rejections


@pytest.mark.parametrize(
    ("body", "failure", "reason"),
    [
        ({"model": "other", "prompt": "a"}, None, "model_not_found"),
        ({"model": "fake", "prompt": "a", "n": "x"}, None, "invalid_value"),
        ({"model": "fake", "prompt": "a"}, QueueFull("full", 1.0), "rate_limit_exceeded"),
        ({"model": "fake", "prompt": "a", "stream": True}, PipelineUnavailable("no", 1.0), "pipeline_unavailable"),
        ({"model": "fake", "prompt": "a" * 5000}, None, "request_too_large"),
    ],
)
async def test_a_rejected_request_is_counted_by_the_code_that_the_client_gets(body, failure, reason):
    reasons: list[str] = []
    fake = FakeGenerator(script=lambda _: (1,), fails_at_start=failure)
    settings = ApiSettings(served_names=("fake",), max_body_bytes=4096)
    app = create_app(fake, fake_text_model(), settings, rejected=reasons.append)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
        answer = await client.post("/v1/completions", json=body)
        assert answer.json()["error"]["code"] == reason
        assert (await client.get("/nowhere/x7")).status_code == 404
        assert (await client.get("/v1/models")).status_code == 200
    assert reasons == [reason, "unknown_url"]


async def test_nobody_makes_series_by_what_he_asks_for(families):
    """Names of models, paths, parameters, methods and ids are the client's: none of them may become a label."""
    fake = FakeGenerator(script=lambda _: (1,))
    settings = ApiSettings(served_names=("fake",))
    app = create_app(fake, fake_text_model(), settings, rejected=lambda reason: families.rejected.labels(reason).inc())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)

    async def ask_of_every_kind(client: httpx.AsyncClient, name: str) -> None:
        for body in (
            {"model": name, "prompt": "a"},
            {"model": "fake", "prompt": "a", name: 1},
            {"model": "fake", "prompt": "a", "temperature": name},
            {"model": "fake", "prompt": "a", "response_format": {"type": name}},
        ):
            answer = await client.post("/v1/completions", json=body, headers={"x-request-id": name})
            assert answer.is_error
        assert (await client.post("/v1/completions", content=name)).is_error
        assert (await client.get(f"/{name}")).status_code == 404
        assert (await client.request(name.upper(), "/v1/models")).is_error

    async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
        await ask_of_every_kind(client, "first")
        before = generate_latest(families.registry).count(b"\nshoal_rejected_total{")
        for number in range(20):
            await ask_of_every_kind(client, f"x{number}")
    series = [line for line in generate_latest(families.registry).splitlines() if line.startswith(b"shoal_rejected_to")]
    assert len(series) == before
    assert sum(float(line.split()[-1]) for line in series) == 21 * 7


# ---- steps


@given(st.lists(st.tuples(st.floats(0.001, 5), st.floats(0, 1)), min_size=1, max_size=30))
def test_the_bubble_is_what_the_stages_do_not_compute(steps):
    """One step at a time on one stage: the share of each step's time that was not computed, fading over time."""
    bubble, now = Bubble(1), 0.0
    for seconds, share in steps:
        bubble.submitted(now)
        now += seconds
        bubble.returned(now, seconds * share)
        now += 100.0  # idle: nothing of it counts
    shares = [share for _, share in steps]
    assert 1 - max(shares) - 1e-6 <= bubble.ratio <= 1 - min(shares) + 1e-6


def test_a_full_pipeline_has_no_bubble_and_a_lone_user_of_two_stages_half():
    full, lone = Bubble(2), Bubble(2)
    full.submitted(0.0)
    for step in range(50):
        full.submitted(float(step))
        full.returned(step + 1.0, 2.0)
        lone.submitted(float(step))
        lone.returned(step + 1.0, 1.0)
    assert full.ratio == pytest.approx(0.0, abs=0.01)
    assert lone.ratio == pytest.approx(0.5)
    assert Bubble(3).ratio == 0.0


def test_a_step_is_counted_stage_by_stage_and_its_hops_together(families):
    metrics = PipelineMetrics(families, 1)
    metrics.opened(2)
    metrics.submitted(10.0)
    metrics.returned(10.1, 10.0, (StageTiming(0, 20_000, 1_000, 5, 300), StageTiming(1, 30_000, 2_000, 5, 100)))
    step = "shoal_stage_step_seconds_sum"
    assert value(families, step, pipeline="1", stage="0", phase="compute") == 0.02
    assert value(families, step, pipeline="1", stage="1", phase="wait") == 0.002
    assert value(families, step, pipeline="1", stage="0", phase="send") == 0.0003
    assert value(families, "shoal_hop_seconds_sum", pipeline="1", hop="ring") == pytest.approx(0.047)
    assert value(families, "shoal_pipeline_bubble_ratio", pipeline="1") == pytest.approx(0.75)


async def test_a_step_loop_tells_of_its_steps_and_of_answers_that_outlive_their_pipeline(families):
    opener = FakeOpener(stages=2)
    loop = StepLoop(opener, QUICK, observer=PipelineMetrics(families, 0))
    await loop.start()
    try:
        await loop.wait_ready(5)
        stream = loop.generate(ask(max_tokens=20))
        seen = len((await anext(stream)).tokens)
        opener.opened[-1].break_off(StageUnreachable("stage at x is gone"))
        async for delta in stream:
            seen += len(delta.tokens)
    finally:
        await loop.stop()
    assert seen == 20
    assert value(families, "shoal_pipeline_lost_total", pipeline="0", reason="StageUnreachable") == 1
    assert value(families, "shoal_recovery_total", outcome="resumed") == 1
    assert value(families, "shoal_replayed_tokens_total") >= 3
    assert value(families, "shoal_hop_seconds_count", pipeline="0", hop="ring") >= 20


# ---- refusals


def test_what_stages_refused_is_added_up_over_their_restarts():
    refused = RefusedPeers()
    for counts in ({"InvalidFrame": 2}, {"InvalidFrame": 2}, {"InvalidFrame": 5, "StaleEpoch": 1}, {"InvalidFrame": 1}):
        refused.said(1, "pc-2:50051", counts)
    refused.said(1, "pc-3:50051", {"Handshake": 4})
    assert refused.counts == {
        ("stage-1", "InvalidFrame"): 6,
        ("stage-1", "StaleEpoch"): 1,
        ("stage-1", "Handshake"): 4,
    }


def test_a_stage_that_makes_up_reasons_makes_no_series():
    refused = RefusedPeers()
    refused.said(0, "a:1", {f"made up {number}": 1 for number in range(1000)})
    assert refused.counts == {("stage-0", "Other"): 1000}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (InvalidFrame("x"), "InvalidFrame"),
        (DigestMismatch("x"), "DigestMismatch"),
        (StageUnreachable("stage at a:1 cannot be reached: Ssl handshake failed (TSI_PROTOCOL_FAILURE)"), "Handshake"),
        (StageUnreachable("stage at a:1 cannot be reached: connection refused"), None),
        (StageError("x"), None),
    ],
)
def test_only_refusals_have_a_reason(error, reason):
    assert reason_of(error) == reason
    assert reason is None or reason in REASONS


# ---- what Prometheus gets


async def test_the_port_shows_every_figure_and_nothing_else(families):
    fleet = Fleet(lambda: {0, 1}, lambda _: FakeOpener(stages=2), QUICK)
    speculation = SpeculationStats({"text": SourceStats(proposed=9, verified=7, accepted=4)}, stale=3)
    refused = RefusedPeers()
    refused.here(InvalidFrame("x"))
    families.registry.register(Levels(fleet.status, speculation, lambda: {0: refused.counts}))
    transport = httpx.ASGITransport(metrics_app(families.registry, LostStages(fleet.look)))
    await fleet.start()
    try:
        await fleet.wait_ready(5)
        async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
            answer = await client.get("/metrics")
            assert (await client.get("/")).status_code == 404
            assert (await client.post("/metrics")).status_code == 405
    finally:
        await fleet.stop()
    assert answer.headers["content-type"].startswith("text/plain")
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert found["shoal_queue_depth",] == 0
    assert found["shoal_pipeline_open", ("pipeline", "0")] == 1
    assert found["shoal_kv_blocks", ("pipeline", "1"), ("state", "free")] > 0
    assert found["shoal_draft_tokens_total", ("outcome", "rejected"), ("source", "text")] == 3
    assert found["shoal_draft_stale_rows_total",] == 3
    assert found["shoal_refused_total", ("pipeline", "0"), ("reason", "InvalidFrame"), ("where", "router")] == 1
    assert found["process_resident_memory_bytes",] > 0


def test_series_are_bounded_by_stages_however_much_happens(families):
    for pipeline in range(2):
        metrics = PipelineMetrics(families, pipeline)
        for epoch in range(50):
            metrics.opened(3)
            for _ in range(10):
                metrics.submitted(0.0)
                metrics.returned(0.1, 0.0, [StageTiming(stage, 1, 1, 1, 1) for stage in range(3)])
            metrics.lost(StageUnreachable(f"{epoch}"))
            metrics.resumed(epoch)
    lines = [line for line in generate_latest(families.registry).splitlines() if line.startswith(b"shoal_")]
    assert len(lines) < 500
