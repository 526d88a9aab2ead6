"""The page in Chromium before a router that asks for an API key: nothing is shown without it, everything with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from playwright.sync_api import Browser, expect

from shoal.api_keys import ApiKeys
from shoal.errors import PlanError
from shoal.plan.document import Plan
from shoal_router.api.app import create_app
from shoal_router.fleet.fleet import Fleet
from shoal_router.pipeline.fake import FakeOpener, planned_at
from shoal_router.serve import listen, url_of
from shoal_router.settings import ApiSettings
from shoal_router.text.fake import fake_text_model
from shoal_router.watch.feed import Watch

SECONDS = 30
LETTER = 3 + ord("a")


def no_plan() -> Plan:
    raise PlanError("there is no plan")


CARD = {
    "version": "0",
    "plan": None,
    "model": {
        "name": "fake",
        "servedNames": ["fake"],
        "digest": "f" * 64,
        "family": "fake",
        "precision": "INT4",
        "groupSize": None,
        "layers": 2,
        "hiddenSize": 8,
        "heads": 1,
        "kvHeads": 1,
        "vocabulary": 259,
        "maxContext": 512,
        "weightBytes": 1,
        "compiler": {},
    },
}


@contextmanager
def router_with_key(keys: Path) -> Iterator[str]:
    """A router over a pipeline in memory, in a thread; its URL."""
    bound = listen("127.0.0.1", 0)
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        opener = FakeOpener(next_token=lambda ids, params: LETTER)
        opener.board.follow(planned_at(("a:1", "b:1"), ((0, 2), (2, 4)), None))
        fleet = Fleet(lambda: [0], lambda index: opener)
        watch = Watch(fleet, no_plan, lambda plan: CARD, tick_seconds=0.05)
        settings = ApiSettings(served_names=("fake",))
        app = create_app(fleet, fake_text_model(), settings, ApiKeys(keys, lambda: 0.0), watch)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"))
        await fleet.start()
        await fleet.wait_ready(SECONDS)
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        ready.set()
        await stop.wait()
        watch.close()
        server.should_exit = True
        await serving
        await fleet.stop()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    try:
        assert ready.wait(SECONDS)
        yield url_of(bound)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(SECONDS)
        loop.close()
        bound.close()


def test_the_page_asks_for_the_key_keeps_it_for_the_tab_and_forgets_it_when_told(
    browser: Browser, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("open-sesame\n")
    with router_with_key(keys) as url:
        page = browser.new_page()
        page.goto(url)
        dialog = page.locator("#key-dialog")
        expect(dialog).to_be_visible()
        expect(page.locator(".stage")).to_have_count(0)
        page.get_by_label("Key", exact=True).fill("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#key-error")).to_have_text("This key is not known here.")
        page.get_by_label("Key", exact=True).fill("open-sesame")
        page.keyboard.press("Enter")
        expect(dialog).not_to_be_visible()
        expect(page.locator(".stage")).to_have_count(2)
        page.get_by_label("Message", exact=True).fill("hello")
        page.get_by_label("Longest answer").evaluate("field => { field.value = 8 }")
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".message.assistant .meta")).to_contain_text("cut at its longest")

        page.reload()
        expect(page.locator(".stage")).to_have_count(2)
        assert page.evaluate("localStorage.length") == 0
        assert page.context.cookies() == []
        page.get_by_role("button", name="Forget the API key").click()
        expect(dialog).to_be_visible()
        page.close()
