"""The router's page in Chromium, over a live pipeline: what a person sees when a stage dies and comes back.

Screenshots go to $SHOAL_ARTEFACTS (default: the test's folder), named by what they show.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

DESK = {"width": 1360, "height": 900}
PHONE = {"width": 390, "height": 844}


@pytest.fixture
def artefacts(tmp_path: Path) -> Path:
    """Where the screenshots go."""
    folder = Path(os.environ.get("SHOAL_ARTEFACTS", tmp_path / "artefacts"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def open_page(
    browser: Browser, url: str, problems: list[str], scheme: str = "light", size: dict[str, int] = DESK
) -> Page:
    page = browser.new_page(viewport=size, color_scheme=scheme, reduced_motion="reduce")
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    page.goto(url)
    return page


def shoot(page: Page, path: Path) -> None:
    """The whole page, from its top: the header sticks to where it was scrolled to."""
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=path, full_page=True)


def faults(page: Page) -> list[str]:
    """What axe calls serious or critical."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']} at {each['nodes'][0]['target']}: {each['nodes'][0].get('failureSummary', '')}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


def test_the_page_shows_a_live_pipeline_a_chat_and_a_stage_that_dies_and_comes_back(
    browser: Browser, start, manifest: Path, artefacts: Path
) -> None:
    shoal = start("run", manifest, "--stages", 2, "--port", 0)
    url = shoal.ready_url()
    problems: list[str] = []
    page = open_page(browser, url, problems)
    stages = page.locator(".stage")
    expect(stages).to_have_count(2)
    expect(page.locator(".stage[data-state=ready]")).to_have_count(2)
    expect(page.locator("#health")).to_have_attribute("data-state", "ready")
    expect(stages.first).to_contain_text("embed")
    expect(stages.last).to_contain_text("head")
    expect(page.locator("#model-card")).to_contain_text("30, hidden size 576")

    # A chat streams: the answer is there before it is over, and who works is said meanwhile.
    page.locator(".parameters summary").click()
    page.get_by_label("Longest answer").fill("48")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Message", exact=True).fill("Write a long story about a lighthouse.")
    page.get_by_label("Message", exact=True).press("Enter")
    answer = page.locator(".message.assistant").first
    expect(answer).to_have_attribute("data-streaming", "true")
    expect(answer.locator(".text")).to_have_text(re.compile(r"\w{3}"))
    expect(answer).to_have_attribute("data-streaming", "true")
    expect(page.locator(".stage[data-busy=true]").first).to_be_visible()
    shoot(page, artefacts / "page-answering.png")
    expect(answer.locator(".meta")).to_have_text(re.compile(r"first token after .*tokens, .* a second"))

    # It stands in the timeline, with the steps of both stages.
    request = page.locator(".request").first
    expect(request).to_have_attribute("aria-label", re.compile(r"prompt of \d+ tokens"))
    request.focus()
    request.press("Enter")
    expect(page.locator(".lane")).to_have_count(2)
    assert page.locator(".lane .track i").count() > 10
    shoot(page, artefacts / "page-light.png")
    assert faults(page) == []

    # Stop stops: the answer ends early, and the router frees it.
    page.get_by_label("Longest answer").fill("400")
    page.get_by_label("Message", exact=True).fill("Now a longer one.")
    page.get_by_role("button", name="Send").click()
    second = page.locator(".message.assistant").nth(1)
    expect(second.locator(".text")).to_have_text(re.compile(r"\w"))
    page.get_by_role("button", name="Stop").click()
    expect(second.locator(".meta")).to_contain_text("stopped")
    expect(page.locator(".request[data-outcome=left]")).to_have_count(1)

    # A stage dies: red, and green again when it was started anew, on the same page.
    last = shoal.child("shoal_stage", "serve", "--blocks") or shoal.child("shoal_stage")
    assert last is not None
    page.evaluate("window.unchanged = true")
    last.kill()
    expect(page.locator(".stage[data-state=lost]")).to_have_count(1)
    expect(page.locator("#health")).to_have_attribute("data-state", "down")
    shoot(page, artefacts / "page-stage-lost.png")
    assert faults(page) == []
    expect(page.locator(".stage[data-state=ready]")).to_have_count(2)
    expect(page.locator("#health")).to_have_attribute("data-state", "ready")
    expect(page.locator("#events li[data-kind=lost]")).to_have_count(1)
    expect(page.locator("#figures")).to_contain_text(re.compile(r"1\s*Recoveries|Recoveries"))
    assert page.evaluate("window.unchanged")
    assert problems == []

    # Dark, and on a phone: nothing is wider than the screen.
    dark = open_page(browser, url, problems, scheme="dark")
    expect(dark.locator(".stage[data-state=ready]")).to_have_count(2)
    assert faults(dark) == []
    shoot(dark, artefacts / "page-dark.png")
    phone = open_page(browser, url, problems, size=PHONE)
    expect(phone.locator(".stage[data-state=ready]")).to_have_count(2)
    assert phone.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    shoot(phone, artefacts / "page-phone.png")
    assert problems == []
