"""The picture of a router: records, rates and the stream of events, over a fleet in memory; the page's files."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing

import httpx
import pytest

from shoal.api_keys import ApiKeys
from shoal.errors import PlanError
from shoal.page import MOST_WATCHERS, page_files
from shoal.wire.errors import StageFailed
from shoal.wire.messages import KvCapacity, SamplingParams, StageDescription, StageProgress, StageState, StageTiming
from shoal_router.api.app import create_app
from shoal_router.fleet.fleet import Fleet
from shoal_router.generation import GenerationRequest, PipelineStatus
from shoal_router.pipeline.board import Seen, StageBoard
from shoal_router.pipeline.fake import FakeOpener, planned_at
from shoal_router.settings import ApiSettings
from shoal_router.step_loop import StepLoopSettings
from shoal_router.text.fake import fake_text_model
from shoal_router.watch.feed import TooManyWatchers, Watch
from shoal_router.watch.journal import REQUESTS, Journal, Outcome, StepRecord
from shoal_router.watch.picture import pipeline_of
from shoal_router.watch.rates import Rates, hop_ms
from shoal_router.watch.view import PipelineView
from shoaltest.waiting import until

QUICK = StepLoopSettings(prefill_chunk=16, backoff=0.001, longest_backoff=0.01)
SECONDS = 20


def no_plan():
    raise PlanError("there is no plan")


class Router:
    """A fleet of one pipeline in memory, and its Watch."""

    def __init__(self, gate=None):
        self.opener = FakeOpener(**({"gate": gate} if gate else {}))
        self.fleet = Fleet(lambda: [0], lambda index: self.opener, QUICK, look_seconds=0.01)
        self.watch = Watch(self.fleet, no_plan, lambda plan: {"plan": plan}, tick_seconds=0.005)

    async def __aenter__(self):
        await self.fleet.start()
        await self.fleet.wait_ready(SECONDS)
        return self

    async def __aexit__(self, *_):
        self.watch.close()
        await self.fleet.stop()

    async def ask(self, tokens=8, request_id="r"):
        request = GenerationRequest(request_id, (1, 2, 3, 4), SamplingParams(temperature=0.0), tokens)
        return [token async for delta in self.fleet.generate(request) for token in delta.tokens]


def parsed(body: bytes):
    for block in body.decode().strip().split("\n\n"):
        kind, data = re.fullmatch(r"event: (\w+)\ndata: (.*)", block).groups()
        yield kind, json.loads(data)


async def states(events, wanted):
    """Read on until a state is as wanted."""
    async with asyncio.timeout(SECONDS):
        async for body in events:
            for kind, data in parsed(body):
                if kind == "state" and wanted(data):
                    return data
    raise AssertionError("the stream ended")


async def test_a_request_is_stamped_and_its_steps_are_kept_only_while_somebody_watches():
    async with Router() as router:
        await router.ask(request_id="unwatched")
        assert router.fleet.journal.steps_seen == 0
        async with aclosing(router.watch.events()) as events:
            kind, card = next(parsed(await anext(events)))
            assert (kind, card) == ("card", {"plan": None})
            await router.ask(tokens=5, request_id="watched")
            state = await states(events, lambda state: state["steps"])
            assert all(step[0] == 0 and step[4] for step in state["steps"])
        unwatched, watched = router.fleet.journal.requests
        for record in (unwatched, watched):
            assert record.arrived <= record.admitted <= record.first <= record.ended
            assert record.outcome is Outcome.LENGTH
        assert (unwatched.tokens, watched.tokens) == (8, 5)
        assert router.fleet.journal.steps_since(0) == [], "nobody watches any more"


async def test_the_state_tells_of_a_lost_pipeline_and_that_it_is_back():
    async with Router() as router, aclosing(router.watch.events()) as events:
        await states(events, lambda state: state["pipelines"][0]["ready"])
        router.opener.opened[-1].break_off(StageFailed("stage 1 at b failed"))
        state = await states(events, lambda state: state["recoveries"] == 1)
        assert [event["kind"] for event in state["events"]] == ["opened", "lost", "opened"]
        assert state["events"][1]["text"] == "stage 1 at b failed"
        assert "s after it was lost" in state["events"][2]["text"]


async def test_a_client_that_leaves_is_told_apart_and_a_loss_is_counted():
    held = asyncio.Event()

    async def gate(step):
        if len(step.rows[0].tokens) == 1:
            await held.wait()

    async with Router(gate) as router:
        request = GenerationRequest("leaver", (1, 2, 3), SamplingParams(temperature=0.0), 8)
        async with aclosing(router.fleet.generate(request)) as deltas:
            await anext(deltas)
            router.opener.opened[-1].break_off(StageFailed("gone"))
            await until(lambda: router.fleet.journal.requests[0].losses)
        record = router.fleet.journal.requests[0]
        held.set()
        assert (record.outcome, record.losses, record.at_first) == (Outcome.LEFT, 1, ())


async def test_close_ends_the_streams_and_too_many_are_refused():
    async with Router() as router:
        streams = [router.watch.events() for _ in range(MOST_WATCHERS)]
        for stream in streams:
            await anext(stream)
        with pytest.raises(TooManyWatchers):
            await anext(router.watch.events())
        router.watch.close()
        for stream in streams:
            async with asyncio.timeout(SECONDS):
                async for _ in stream:
                    pass
        assert router.fleet.journal.watchers == 0


def test_the_journal_is_bounded():
    journal = Journal()
    for number in range(3 * REQUESTS):
        journal.begin(str(number), number, 0, 4, float(number))
    assert len(journal.requests) == REQUESTS
    with journal.watched():
        for number in range(5):
            journal.step(StepRecord(0, number, number + 0.5, 1, (1,), ()))
        assert [step.sent for step in journal.steps_since(3)] == [3, 4]
        assert len(journal.steps_since(0)) == 5
    assert journal.steps_since(0) == []


def view(at_step, generated, compute_us, epoch=1, progress=()):
    timings = (StageTiming(0, compute_us, queue_us=1000 * at_step),) if at_step else ()
    status = PipelineStatus(
        index=0, ready=True, detail="", max_context=512, epoch=epoch, running=1, waiting=0, kv_blocks=8,
        kv_blocks_free=4, timings=timings, steps=at_step,
    )  # fmt: skip
    return PipelineView(status, board().views, progress, generated, slots=4, in_flight=1)


def board():
    made = StageBoard()
    made.follow(planned_at(("a:1",), ((0, 4),), None))
    return made


def test_rates_are_differences_within_one_epoch():
    rates = Rates(window=3.0)
    assert rates.take(view(0, 0, 0), 10.0).tokens is None
    found = rates.take(view(10, 30, 500_000), 11.0)
    assert (found.tokens, found.steps) == (30.0, 10.0)
    assert found.stage(0) == {"load": 0.5, "computeMs": 50.0, "queueMs": 1.0, "idleMs": 0.0, "sendMs": 0.0}
    assert rates.take(view(1, 31, 1000, epoch=2), 11.5).tokens is None, "a new epoch counts from 0"
    assert rates.take(view(2, 32, 2000, epoch=2), 99.0).tokens is None, "nobody looked for a while"


def test_a_hop_is_what_remains_of_the_round_trip():
    step = StepRecord(0, 1.0, 1.040, 1, (7,), (StageTiming(0, 20_000, 2_000), StageTiming(1, 12_000, 0)))
    assert hop_ms(step) == pytest.approx(2.0)


def description(device="CPU", executes=("CPU",)):
    capacity = KvCapacity(4, 8, 16, 512, 0, True)
    return StageDescription(
        "d" * 64, 0, 4, 4, StageState.READY, 1, "paged", device, executes, False, 8, 96, 1 << 20, capacity
    )  # fmt: skip


def test_the_board_tells_lost_from_not_there_yet_and_a_new_address_from_the_old_one():
    made = board()
    assert made.views[0].state is Seen.WAITING
    made.silent(0, "refused")
    assert made.views[0].state is Seen.WAITING
    made.heard(0, Seen.READY, "", description())
    made.follow(planned_at(("a:1",), ((0, 4),), None))
    assert made.views[0].state is Seen.READY
    made.silent(0, "refused")
    assert made.views[0].state is Seen.LOST
    made.follow(planned_at(("b:1",), ((0, 4),), None))
    assert made.views[0].state is Seen.WAITING


def test_a_device_that_fell_back_and_a_stage_that_drains_are_said():
    made = board()
    made.heard(0, Seen.READY, "", description(executes=("GPU.0",)))
    seen = view(1, 1, 1000, progress=(StageProgress(0, 5, 7, draining=True),))
    drawn = pipeline_of(
        PipelineView(seen.status, made.views, seen.progress, 1, 4, 1), Rates().take(seen, 1.0), layers=2
    )["stages"][0]
    assert drawn["fellBack"] is True  # planned for the CPU
    assert (drawn["state"], drawn["done"], drawn["busyMs"]) == ("draining", 5, 7)


# ---- the page


def client_of(router, keys=None, requests_per_key=None):
    settings = ApiSettings(served_names=("fake",), requests_per_key=requests_per_key)
    app = create_app(router.fleet, fake_text_model(), settings, keys, router.watch)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router")


async def test_the_page_is_served_whole_and_loads_nothing_from_elsewhere():
    async with Router() as router, client_of(router) as client:
        page = await client.get("/")
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert (await client.get("/", headers={"If-None-Match": page.headers["etag"]})).status_code == 304
        for name in page_files("shoal_router"):
            part = await client.get(f"/page/{name}")
            assert part.status_code == 200, name
            assert not re.search(r"(src|href|import|from|url\()\s*=?\s*[\"'(]?https?://", part.text), name
            assert " style=" not in part.text or name.endswith(".js"), name
        files = page_files("shoal_router")
        referred = set(re.findall(r"[\"'](?:/page/|\./)([\w.]+)[\"']", "".join(map(_text, files.values()))))
        assert referred <= files.keys()
        assert (await client.get("/page/../settings.py")).status_code == 404
        assert (await client.get("/page/none.js")).status_code == 404


def _text(file):
    return file.body.decode()


async def test_the_page_is_open_and_its_events_need_the_key_but_count_as_no_request(tmp_path):
    path = tmp_path / "keys"
    path.write_text("secret\n")
    async with Router() as router, client_of(router, ApiKeys(path, lambda: 0.0), requests_per_key=1) as client:
        assert (await client.get("/")).status_code == 200
        assert (await client.get("/page/main.js")).status_code == 200
        assert (await client.get("/watch/events")).status_code == 401
        key = {"Authorization": "Bearer secret"}
        streaming = asyncio.create_task(client.get("/watch/events", headers=key))
        async with asyncio.timeout(SECONDS):
            await until(lambda: router.fleet.journal.watchers)
            assert (await client.get("/v1/models", headers=key)).status_code == 200
            router.watch.close()
            answer = await streaming
        assert answer.text.startswith("event: card\n")
        assert (await client.get("/watch/events", headers=key)).status_code == 503


async def test_without_a_watch_there_is_no_page():
    async with Router() as router:
        app = create_app(router.fleet, fake_text_model(), ApiSettings(served_names=("fake",)))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router") as client:
            assert (await client.get("/")).status_code == 404
