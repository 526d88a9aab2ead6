"""One trace a request over router and stages, seen by a collector that speaks OTLP; none where nobody asked for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from shoal.tracing import ENDPOINT, traces_of_environment
from shoal_router.api.app import create_app
from shoal_router.fleet.fleet import Fleet
from shoal_router.pipeline.fake import planned_at
from shoal_router.pipeline.opener import RingOpener
from shoal_router.pipeline.plan_source import FixedPlan
from shoal_router.settings import ApiSettings
from shoal_router.step_loop import StepLoopSettings
from shoal_router.text.fake import fake_text_model
from shoal_stage.server.fake import fake_pipeline

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector:
    """Takes spans by HTTP, as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        self.spans = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    names = {each.key: each.value.string_value for each in resource.resource.attributes}
                    for scope in resource.scope_spans:
                        collector.spans += [(names["service.name"], span) for span in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    monkeypatch.setenv(ENDPOINT, made.url)
    # The exporter must not turn to a proxy of the environment for the loopback.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@asynccontextmanager
async def router(traces, stage_traces):
    async with fake_pipeline(2, vocab_size=512, traces=stage_traces) as handles:
        plan = planned_at(
            [handle.address for handle in handles], [handle.blocks for handle in handles], handles[0].manifest.digest
        )
        settings = StepLoopSettings(prefill_chunk=16)
        fleet = Fleet(lambda: [0], lambda index: RingOpener(FixedPlan(plan), 16), settings)
        fleet.journal.traces = traces
        app = create_app(fleet, fake_text_model(), ApiSettings(served_names=("fake",)), traces=traces)
        await fleet.start()
        try:
            await fleet.wait_ready(20)
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router") as client:
                yield client
        finally:
            await fleet.stop()


async def ask(client: httpx.AsyncClient, **headers: str) -> httpx.Response:
    body = {"model": "fake", "prompt": "a prompt of two chunks", "max_tokens": 6}
    answer = await client.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


async def test_a_request_is_one_trace_over_router_and_stages(collector: Collector) -> None:
    of_router, of_stages = traces_of_environment("shoal-router"), traces_of_environment("shoal-stage")
    async with router(of_router, of_stages) as client:
        answer = await ask(client, traceparent=PARENT, **{"x-request-id": "mine"})
    of_router.close()
    of_stages.close()
    spans = {span.name: (service, span) for service, span in collector.spans}
    assert set(spans) == {"POST /v1/completions", "queue", "prefill", "decode", "stage 0", "stage 1"}
    assert len(collector.spans) == 6
    assert {span.trace_id.hex() for _, span in spans.values()} == {PARENT.split("-")[1]}
    root = spans["POST /v1/completions"][1]
    assert root.parent_span_id.hex() == PARENT.split("-")[2]
    for name in ("queue", "prefill", "decode", "stage 0", "stage 1"):
        service, span = spans[name]
        assert span.parent_span_id == root.span_id
        assert service == ("shoal-stage" if name.startswith("stage") else "shoal-router")
        assert span.start_time_unix_nano <= span.end_time_unix_nano
    facts = {each.key: each.value for each in spans["stage 1"][1].attributes}
    assert facts["shoal.steps"].int_value >= 6
    assert facts["shoal.compute_ms"].double_value >= 0
    said = {each.key: each.value for each in root.attributes}
    assert said["shoal.request_id"].string_value == "mine" == answer.headers["x-request-id"]
    prefill, decode = spans["prefill"][1], spans["decode"][1]
    assert prefill.end_time_unix_nano == decode.start_time_unix_nano


async def test_without_an_endpoint_there_are_no_traces_and_frames_carry_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENDPOINT, raising=False)
    assert traces_of_environment("shoal-router") is None
    async with router(None, None) as client:
        await ask(client, traceparent=PARENT)


async def test_a_caller_who_wants_no_trace_gets_none(collector: Collector) -> None:
    of_router, of_stages = traces_of_environment("shoal-router"), traces_of_environment("shoal-stage")
    async with router(of_router, of_stages) as client:
        await ask(client, traceparent=PARENT[:-1] + "0")
    of_router.close()
    of_stages.close()
    assert collector.spans == []
