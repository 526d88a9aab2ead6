"""What surrounds the endpoints: request ids, health, models, status, settings."""

import logging

import pytest

from shoal.errors import UsageError
from shoal_router.generation import PipelineUnavailable
from shoal_router.serve import url_of
from shoal_router.settings import parse_arguments, split_address

REQUIRED = ["--plan=p.json", "--model=m"]


async def test_a_request_id_comes_back_or_is_made_up(bench) -> None:
    async def sent(*headers):
        return (await bench.client.get("/v1/models", headers=list(headers))).headers["x-request-id"]

    assert await sent(("x-request-id", "abc-1")) == "abc-1"
    made_up = {await sent(), await sent(("x-request-id", "with space")), await sent(("x-request-id", "x" * 200))}
    assert len(made_up) == 3
    assert all(len(made) == 32 for made in made_up)


async def test_one_log_line_a_request_carries_its_id(bench, caplog) -> None:
    caplog.set_level(logging.INFO)
    client = bench.client
    await client.post("/v1/completions", json={}, headers={"x-request-id": "r1"})
    await client.get("/health/ready")
    lines = [record for record in caplog.records if record.name == "shoal_router.access"]
    assert [(r.request_id, r.path, r.status) for r in lines] == [("r1", "/v1/completions", 400)]


async def test_a_defect_is_logged_with_the_request_id_and_not_told(bench, caplog) -> None:
    bench.generator.fails_at_start = RuntimeError("secret")
    client = bench.client
    body = {"model": "fake", "prompt": "x"}
    response = await client.post("/v1/completions", json=body, headers={"x-request-id": "r2"})
    assert "r2" in response.json()["error"]["message"]
    record = next(record for record in caplog.records if record.name == "shoal_router.api.errors")
    assert (record.request_id, str(record.exc_info[1])) == ("r2", "secret")


async def test_a_defect_anywhere_is_a_500_in_openais_form_with_the_id(bench, caplog, monkeypatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret")

    caplog.set_level(logging.INFO)
    monkeypatch.setattr("shoal_router.api.app.completion_job", broken)
    client = bench.client
    body = {"model": "fake", "prompt": "x"}
    response = await client.post("/v1/completions", json=body, headers={"x-request-id": "r3"})
    assert response.status_code == 500
    assert response.headers["x-request-id"] == "r3"
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret" not in response.text
    assert [r.status for r in caplog.records if r.name == "shoal_router.access"] == [500]


async def test_health_follows_the_pipeline(bench) -> None:
    assert (await bench.client.get("/health/ready")).status_code == 200
    bench.generator.ready = False
    for path in ("/health", "/health/ready"):
        response = await bench.client.get(path)
        assert response.status_code == 503
        assert response.json() == {"status": "unavailable", "detail": "the pipeline is opening"}
        assert response.headers["retry-after"] == "1"
    assert (await bench.client.get("/health/live")).status_code == 200


async def test_models_are_listed_under_every_served_name(bench) -> None:
    models = (await bench.client.get("/v1/models")).json()
    assert models["object"] == "list"
    assert [model["id"] for model in models["data"]] == ["fake", "org/fake"]
    one = (await bench.client.get("/v1/models/org/fake")).json()
    assert one == models["data"][1]
    assert one["max_model_len"] == 4096


async def test_before_a_pipeline_was_open_the_context_is_unknown_not_zero(bench) -> None:
    bench.generator.max_context = 0
    assert (await bench.client.get("/v1/models/fake")).json()["max_model_len"] is None
    bench.generator.fails_at_start = PipelineUnavailable("loading", 1)
    assert (await bench.chat()).status_code == 503


async def test_status_is_the_generators_own_account(bench) -> None:
    status = (await bench.client.get("/status")).json()
    assert status["ready"] is True
    assert status["timings"] == [{"stage": 0, "compute_us": 0, "queue_us": 0, "idle_us": 0, "send_us": 0}]


async def test_the_openapi_document_names_every_parameter(bench) -> None:
    document = (await bench.client.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    assert {"messages", "tools", "top_k", "stop"} <= set(schemas["ChatRequest"]["properties"])
    assert schemas["ChatRequest"]["additionalProperties"] is False
    assert "/v1/chat/completions" in document["paths"]


def test_arguments_become_settings() -> None:
    settings = parse_arguments(
        [*REQUIRED, "--listen=[::1]:80", "--served-name=a", "--served-name=b/c", "--max-queue=5", "--die-with-parent"]
    )
    assert (settings.host, settings.port, settings.served_names) == ("::1", 80, ("a", "b/c"))
    assert (settings.max_queue, settings.prefill_chunk, settings.die_with_parent) == (5, 256, True)
    assert settings.prefix_cache
    more = parse_arguments([*REQUIRED, "--no-prefix-cache", "--recovery-attempts=0", "--recovery-seconds=1.5"])
    assert (more.prefix_cache, more.recovery_attempts, more.recovery_seconds) == (False, 0, 1.5)
    assert (more.speculative_mode, more.speculative_max_tokens, more.draft_address) == ("Auto", 8, None)
    fixed = parse_arguments(
        [*REQUIRED, "--speculative-mode=Fixed", "--speculative-max-tokens=3", "--draft-address=h:9"]
    )
    assert (fixed.speculative_mode, fixed.speculative_max_tokens, fixed.draft_address) == ("Fixed", 3, "h:9")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "--plan, --model"),
        ([*REQUIRED, "--nope"], "--nope"),
        ([*REQUIRED, "--listen=8000"], "--listen"),
        ([*REQUIRED, "--listen=h:70000"], "--listen"),
        ([*REQUIRED, "--max-queue=-1"], "--max-queue"),
        ([*REQUIRED, "--prefill-chunk=0"], "--prefill-chunk"),
        ([*REQUIRED, "--prefill-chunk=x"], "--prefill-chunk"),
        ([*REQUIRED, "--speculative-mode=Sometimes"], "--speculative-mode"),
        ([*REQUIRED, "--speculative-max-tokens=0"], "--speculative-max-tokens"),
        ([*REQUIRED, "--draft-address=here"], "--draft-address"),
        ([*REQUIRED, "--keep-alive-seconds=90"], "--keep-alive-seconds"),
    ],
)
def test_a_wrong_argument_is_one_line_with_its_name(argv, said) -> None:
    with pytest.raises(UsageError) as caught:
        parse_arguments(argv)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "url"),
    [
        (("0.0.0.0", 8000), "http://127.0.0.1:8000"),
        (("::1", 80, 0, 0), "http://[::1]:80"),
        (("10.0.0.1", 1), "http://10.0.0.1:1"),
    ],
)
def test_the_url_is_one_that_a_client_can_use(name, url) -> None:
    class Bound:
        def getsockname(self):
            return name

    assert url_of(Bound()) == url
    assert split_address("localhost:0") == ("localhost", 0)
