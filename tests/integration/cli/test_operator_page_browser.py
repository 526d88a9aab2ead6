"""The operator's page in Chromium: statuses as the reconciler writes them, a stage that is lost and one in use.

Screenshots go to $SHOAL_ARTEFACTS (default: the test's folder), named by what they show.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from shoal.api_keys import ApiKeys
from shoal_operator.watch.picture import models_of
from shoal_operator.watch.serve import Page as ModelsPage
from shoal_operator.watch.serve import serve_page

SECONDS = 30
PHONE = {"width": 390, "height": 844}
GIB = 1 << 30


def stage(index: int, node: str, layers: str, ready: bool = True) -> dict[str, Any]:
    memory = {"index": index, "node": node, "device": "GPU", "layers": layers, "memoryBytes": 5 * GIB}
    return memory | {"ready": ready}


def model(name: str, ready: str, reason: str, message: str, *stages: dict[str, Any], **status: Any) -> dict[str, Any]:
    conditions = [
        {"type": "Planned", "status": "True", "reason": "Planned", "message": "pc-01: embed, layers 0-15"},
        {"type": "StagesReady", "status": ready, "reason": reason, "message": message},
        {"type": "Ready", "status": ready, "reason": reason, "message": message},
        {"type": "Degraded", "status": "False", "reason": "AsPlanned"},
    ]
    since = {"lastTransitionTime": "2026-11-30T09:00:00Z"}
    return {
        "metadata": {"namespace": "ai", "name": name, "generation": 1},
        "spec": {"replicas": 1, "router": {"service": {"port": 8000}}},
        "status": {
            "observedGeneration": 1,
            "conditions": [each | since for each in conditions],
            "readyReplicas": int(ready == "True"),
            "url": f"http://{name}.ai.svc.cluster.local:8000/v1",
            "modelDigest": "a" * 64,
            "plan": {"pipelines": [{"index": 0, "stages": list(stages)}], "spares": ["pc-05"], "tokensPerSecond": 9},
            **status,
        },
    }


class Office:
    """What the page looks at; tests change it."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = [
            {"metadata": {"name": "pc-02"}, "status": {"conditions": []}},
        ]
        self.models = [
            model(
                "llama-70b", "True", "Serving", "the API answers",
                stage(0, "pc-01", "embed, layers 0-39"), stage(1, "pc-02", "layers 40-79, head"),
                measured={
                    "placement": "x", "firstTokenMilliseconds": 412.5, "tokensPerSecond": 8.4, "promptTokens": 60
                },
            ),
            model("qwen-32b", "True", "Serving", "the API answers", stage(0, "pc-03", "embed, layers 0-63, head")),
        ]  # fmt: skip

    def look(self) -> list[dict[str, Any]]:
        return models_of(self.models, self.nodes)


@contextmanager
def serving(office: Office, keys: ApiKeys | None = None) -> Iterator[str]:
    """The page in a thread; its URL."""
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    found: list[int] = []

    async def run() -> None:
        runner = await serve_page(ModelsPage(office.look, keys, 0.05), 0, everywhere=False)
        found.append(runner.addresses[0][1])
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    try:
        assert ready.wait(SECONDS)
        yield f"http://127.0.0.1:{found[0]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(SECONDS)
        loop.close()


@pytest.fixture
def artefacts(tmp_path: Path) -> Path:
    """Where the screenshots go."""
    folder = Path(os.environ.get("SHOAL_ARTEFACTS", tmp_path / "artefacts"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def faults(page: Page) -> list[str]:
    """What axe calls serious or critical."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']} at {each['nodes'][0]['target']}: {each['nodes'][0].get('failureSummary', '')}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


def test_the_page_shows_every_model_and_follows_what_happens(browser: Browser, artefacts: Path) -> None:
    office = Office()
    problems: list[str] = []
    with serving(office) as url:
        page = browser.new_page(viewport={"width": 1360, "height": 900}, reduced_motion="reduce")
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
        page.goto(url)
        expect(page.locator(".model")).to_have_count(2)
        expect(page.locator("#health")).to_have_text("2 models ready")
        llama = page.get_by_label("ai/llama-70b", exact=True)
        expect(llama.locator(".stage[data-state=ready]")).to_have_count(2)
        expect(llama).to_contain_text("layers 40-79, head")
        expect(llama).to_contain_text("8.4 tokens/s")
        expect(llama).to_contain_text("kubectl port-forward -n ai service/llama-70b 8000:8000")
        expect(llama.locator(".conditions")).to_contain_text(re.compile(r"True since \d+ \w+, \d\d:\d\d · Serving"))
        assert faults(page) == []
        page.screenshot(path=artefacts / "models-light.png", full_page=True)

        # By the keyboard: past the header to the models, and the theme.
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to models")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#models")).to_be_focused()
        page.keyboard.press("Shift+Tab")
        theme = page.locator("#theme")
        expect(theme).to_be_focused()
        before = theme.get_attribute("aria-label")
        page.keyboard.press("Enter")
        expect(theme).not_to_have_attribute("aria-label", before or "")

        # A PC is in use, another one is lost: on the same page, the model that suffers first.
        page.evaluate("window.unchanged = true")
        office.nodes[0]["status"]["conditions"] = [
            {"type": "ShoalPCInUse", "status": "True", "reason": "UserActive"},
        ]
        expect(llama.locator(".in-use:visible")).to_contain_text("UserActive")
        lost = "StagesReady: stage 0 on pc-03: the node is not Ready"
        office.models[1] = model(
            "qwen-32b", "False", "NodeLost", lost, stage(0, "pc-03", "embed, layers 0-63, head", ready=False)
        )
        qwen = page.get_by_label("ai/qwen-32b", exact=True)
        expect(qwen).to_have_attribute("data-state", "down")
        expect(page.locator(".model").first).to_have_attribute("aria-label", "ai/qwen-32b")
        expect(qwen).to_contain_text("the node is not Ready")
        expect(page.locator("#health")).to_have_text("1 of 2 models ready")
        assert page.evaluate("window.unchanged")
        assert faults(page) == []
        page.screenshot(path=artefacts / "models-lost.png", full_page=True)

        office.models.clear()
        expect(page.locator(".model")).to_have_count(0)
        expect(page.locator("#models-empty")).to_contain_text("There are no ShardedModels")
        office.models[:] = Office().models

        dark = browser.new_page(color_scheme="dark", viewport=PHONE, reduced_motion="reduce")
        dark.goto(url)
        expect(dark.locator(".model")).to_have_count(2)
        assert faults(dark) == []
        assert dark.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        dark.screenshot(path=artefacts / "models-phone.png", full_page=True)
    assert problems == []


def test_the_page_asks_for_the_key(browser: Browser, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("open-sesame\n")
    with serving(Office(), ApiKeys(keys, lambda: 0.0)) as url:
        page = browser.new_page()
        page.goto(url)
        expect(page.locator("#key-dialog")).to_be_visible()
        expect(page.locator(".model")).to_have_count(0)
        page.get_by_label("Key", exact=True).fill("open-sesame")
        page.keyboard.press("Enter")
        expect(page.locator(".model")).to_have_count(2)
