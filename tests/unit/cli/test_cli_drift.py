"""`shoal bench --minutes`: windows, thirds, the plot, and a load that is kept up."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal_cli.client import RouterClient
from shoal_cli.load.drift import Asked, Reading, changes, soak_of, window_of, window_seconds
from shoal_cli.load.drift_chart import drift_svg, panels
from shoal_cli.load.figures import Sample
from shoal_cli.load.outcome import soak_document
from shoal_cli.load.page import soak_page
from shoal_cli.load.soak import SoakLoad, kv_blocks_held, run_soak
from shoal_cli.load.terminal import drift_table, sparkline
from shoal_cli.main import main
from shoal_router.api.app import create_app
from shoal_router.api.fake import FakeGenerator
from shoal_router.generation import GenerationFailed
from shoal_router.settings import ApiSettings
from shoal_router.text.fake import fake_text_model


def answer(began: float, *pieces: float, tokens: int | None = None, error: str = "") -> Asked:
    ended = began + (pieces[-1] if pieces else 0.0)
    return Asked(began, ended, Sample(pieces, 10, len(pieces) if tokens is None else tokens, error))


def client_of(generator: FakeGenerator) -> RouterClient:
    app = create_app(generator, fake_text_model(), ApiSettings(served_names=("fake",)))
    return RouterClient("http://router", transport=httpx.ASGITransport(app))


def test_a_piece_counts_in_the_window_in_which_it_came() -> None:
    asked = [answer(9.0, 0.5, 1.5, 2.5, tokens=6)]  # comes at 9.5, 10.5 and 11.5, two tokens each
    before, after = window_of(asked, [], 0.0, 10.0), window_of(asked, [], 10.0, 20.0)
    assert (before.tokens_per_second, after.tokens_per_second) == (0.2, 0.4)
    assert before.ttft is not None
    assert before.ttft.p50 == 500
    assert after.ttft is None
    assert before.itl is None
    assert after.itl is not None
    assert after.itl.p99 == 1000
    assert (before.answers, after.answers) == (0, 1)


def test_a_failure_is_lost_when_its_answer_had_begun() -> None:
    asked = [answer(1.0, error="refused"), answer(1.0, 0.5, 0.75, tokens=0, error="broke off"), answer(2.0, 0.5)]
    window = window_of(asked, [], 0.0, 10.0)
    assert (window.answers, window.failed, window.lost) == (1, 2, 1)
    assert window.tokens_per_second == pytest.approx(0.3), "what came before it broke off was served"
    soak = soak_of(asked, [], 10.0)
    assert (soak.answers, soak.failed, soak.lost, soak.first_error) == (1, 2, 1, "refused")


@settings(max_examples=30)
@given(st.lists(st.floats(0.001, 20), min_size=1, max_size=30), st.floats(0, 100))
def test_windows_side_by_side_hold_every_token_once(gaps: list[float], began: float) -> None:
    pieces = [sum(gaps[: number + 1]) for number in range(len(gaps))]
    asked = [answer(began, *pieces, tokens=3 * len(pieces))]
    windows = soak_of(asked, [], 1000.0).windows
    assert sum(window.tokens_per_second * window.seconds for window in windows) == pytest.approx(3 * len(pieces))


def test_drift_is_the_last_third_over_the_first_without_the_warm_up() -> None:
    # A tenth of 100 s is warm-up; then 10 to 40 has a token a second, and 70 to 100 has two.
    asked = [answer(float(at), 0.25) for at in range(10)] * 9
    asked += [answer(float(at), 0.25) for at in range(10, 40)]
    asked += [answer(float(at), 0.5) for at in range(40, 100)] * 2
    readings = [Reading(float(at), 4, {"router": 50.0 if at < 40 else 75.0}) for at in range(100)]
    soak = soak_of(asked, readings, 100.0)
    ratios = {name: change.ratio for name, change in soak.changes.items()}
    assert ratios == pytest.approx(
        {"tokens_per_s": 2, "ttft_p50": 2, "ttft_p99": 2, "kv_blocks": 1, "memory.router": 1.5}
    )
    assert len(soak.windows) == 10
    assert soak.windows[0].memory == {"router": 50.0}
    assert soak.windows[0].kv_blocks == 4


def test_what_one_of_the_thirds_lacks_has_no_drift() -> None:
    empty = window_of([], [], 0.0, 10.0)
    some = window_of([answer(1.0, 0.5, 1.0)], [Reading(1.0, 3, {"stage 0": 9.0})], 0.0, 10.0)
    assert changes(empty, some) == {}
    assert set(changes(some, empty)) == {"tokens_per_s"}
    assert set(changes(some, some)) == {
        "tokens_per_s", "ttft_p50", "ttft_p99", "itl_p50", "itl_p99", "kv_blocks", "memory.stage 0",
    }  # fmt: skip


def test_windows_are_half_a_minute_wide_and_at_least_ten() -> None:
    assert window_seconds(1800.0) == 30.0
    assert window_seconds(60.0) == 6.0


def test_the_plot_has_every_curve_and_marks_failures() -> None:
    asked = [answer(float(at), 0.25, 0.5) for at in range(100) if not 30 <= at < 50] + [answer(35.0, error="<gone>")]
    readings = [Reading(float(at), at, {"router": 50.0, "stage <0>": 80.0}) for at in range(100)]
    soak = soak_of(asked, readings, 100.0)
    assert [panel.title for panel in panels(soak.windows)] == [
        "tokens a second, all users; dots: failed requests (1)",
        "time to first token, ms",
        "time between tokens, ms",
        "resident memory, MiB",
        "KV blocks held",
    ]
    picture = ElementTree.fromstring(drift_svg(soak.windows, "<model> & more"))
    name = "{http://www.w3.org/2000/svg}"
    curves = picture.findall(f".//{name}polyline")
    # Where nothing was answered the four curves of waits have a hole.
    assert len(curves) == 1 + 2 * 4 + 2 + 1
    (mark,) = picture.findall(f".//{name}circle")
    assert (float(mark.get("cx", "")) - 62) / (760 - 62 - 150) * 100 == pytest.approx(35, abs=0.1)
    assert "stage <0> 80 → 80" in [each.text for each in picture.iter(f"{name}text")]
    page = soak_page(soak, "<model>", "http://router", "today")
    assert "&lt;model&gt;" in page
    assert "<script" not in page
    assert json.loads(json.dumps(soak_document(soak)))["changes"]["memory.router"]["ratio"] == 1


def test_a_sparkline_has_a_place_for_each_window() -> None:
    assert sparkline([0.0, None, 5.0, 10.0]) == "▁ ▅█"
    assert sparkline([]) == ""


async def test_users_are_kept_busy_until_the_time_is_over() -> None:
    generator = FakeGenerator(script=lambda request: fake_text_model().encode("word " * 12, add_special_tokens=False))
    seen = []

    async def levels():
        return await kv_blocks_held(client), {"router": 64.0}

    async with client_of(generator) as client:
        soak = await run_soak(client, "fake", SoakLoad(2, (200, 400), 8, 0.3), seen.append, levels)
    assert [window.start for window in seen] == [window.start for window in soak.windows]
    assert len(seen) == 10
    assert soak.failed == 0
    assert soak.answers == len(generator.requests) - 2 >= 2, "two requests learn the length of a word"
    assert all(window.memory == {"router": 64.0} for window in soak.windows)
    lengths = {len(request.prompt) for request in generator.requests[2:]}
    assert min(lengths) < 300 < max(lengths), "both lengths come in turn"
    assert drift_table(soak, "fake")


async def test_an_endpoint_where_everything_fails_is_one_error() -> None:
    calls = 0

    def script(request):
        nonlocal calls
        calls += 1
        if calls > 2:  # the two that learn the length of a word
            raise GenerationFailed("a stage is gone")
        return fake_text_model().encode("word", add_special_tokens=False)

    async def levels():
        return None, {}

    async with client_of(FakeGenerator(script=script)) as client:
        with pytest.raises(UsageError, match="every request failed: the router answered 500"):
            await run_soak(client, "fake", SoakLoad(1, (20,), 8, 0.1), lambda window: None, levels)
    assert calls == 3, "a user who was refused does not ask again at once"


async def test_an_endpoint_without_a_status_has_no_kv_blocks() -> None:
    def answered(request: httpx.Request) -> httpx.Response:
        return httpx.Response(404, json={"error": {"message": "no such path"}})

    async with RouterClient("http://other", transport=httpx.MockTransport(answered)) as client:
        assert await kv_blocks_held(client) is None


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--concurrency", "1,2"), "--concurrency"),
        (("--requests", "9"), "--requests"),
        (("--html", "/no/such/folder/drift.html"), "--html"),
    ],
)
def test_what_a_long_load_cannot_do_is_refused(
    options: tuple[str, str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--minutes", "1", *options]) == 2
    assert named in capsys.readouterr().err
