"""`shoal bench` against a router that recites: figures, page and options."""

from __future__ import annotations

import json

import httpx
import pytest

from shoal.errors import UsageError
from shoal_cli.client import RouterClient
from shoal_cli.load.figures import Sample, percentile, point_of
from shoal_cli.load.page import html_page
from shoal_cli.load.run import Load, run_load
from shoal_cli.load.terminal import bars, figures_table
from shoal_cli.main import main
from shoal_router.api.app import create_app
from shoal_router.api.fake import FakeGenerator
from shoal_router.generation import GenerationFailed
from shoal_router.settings import ApiSettings
from shoal_router.text.fake import fake_text_model


def client_of(generator: FakeGenerator) -> RouterClient:
    app = create_app(generator, fake_text_model(), ApiSettings(served_names=("fake",)))
    return RouterClient("http://router", transport=httpx.ASGITransport(app))


async def test_every_point_is_measured_with_prompts_of_about_the_length_that_was_asked_for() -> None:
    generator = FakeGenerator(script=lambda request: fake_text_model().encode("word " * 40, add_special_tokens=False))
    seen = []
    async with client_of(generator) as client:
        points = await run_load(client, "fake", Load((1, 3), (200, 800), max_tokens=20, requests=4), seen.append)
    assert points == seen
    assert [(point.concurrency, point.requests, point.failed) for point in points] == [(1, 4, 0), (3, 4, 0)] * 2
    for point, wanted in zip(points, (200, 200, 800, 800), strict=True):
        assert point.prompt_tokens == pytest.approx(wanted, rel=0.15)
        assert point.tokens_per_second * point.seconds == pytest.approx(80)
    prompts = [request.prompt for request in generator.requests]
    assert len(set(prompts)) == len(prompts), "a prefix cache could answer"
    page = html_page(points, "<fake>", "http://router", "today")
    assert "&lt;fake&gt;" in page
    assert page.count("<tr>") == 5
    assert "<script" not in page
    assert len(bars(points)) == 5
    assert figures_table(points, "fake")


async def test_an_endpoint_where_everything_fails_is_one_error() -> None:
    def fail(request):
        raise GenerationFailed("a stage is gone")

    async with client_of(FakeGenerator(script=fail)) as client:
        with pytest.raises(UsageError, match="the router answered 500"):
            await run_load(client, "fake", Load((1,), (20,), 8, 2), lambda point: None)


def test_figures_are_those_of_the_samples() -> None:
    samples = [Sample((0.1, 0.2, 0.4), 10, 3), Sample((0.3, 0.5), 12, 5), Sample(error="refused")]
    point = point_of(samples, concurrency=2, seconds=2.0)
    assert (point.requests, point.failed, point.first_error, point.prompt_tokens) == (3, 1, "refused", 11)
    assert point.tokens_per_second == 4.0
    assert point.ttft.p50 == pytest.approx(200)
    assert point.itl.p50 == pytest.approx(200)
    assert point.tpot.p50 == pytest.approx(100)  # 150 and 50
    assert point_of([Sample(error="x")], concurrency=1, seconds=1.0).ttft is None


def test_percentiles_are_linear_between_neighbours() -> None:
    assert percentile([4.0, 1.0, 2.0, 3.0], 0.5) == 2.5
    assert percentile([7.0], 0.99) == 7.0


@pytest.mark.parametrize("wrong", ["0", "a", "1,,2", "-3"])
def test_a_list_that_is_none_is_refused_by_its_option(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--concurrency", wrong]) == 2
    assert "--concurrency" in capsys.readouterr().err


def test_doctor_says_what_it_found(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    code = main(["doctor", "--json", "--device", "CPU", "--cache", str(tmp_path)])
    report = json.loads(capsys.readouterr().out)
    tests = [each for each in report["findings"] if each["about"] == "self-test CPU"]
    assert len(tests) == 1
    assert (code == 0) == (
        not any(each["level"] == "error" and each["device"] in ("", "CPU") for each in report["findings"])
    )
