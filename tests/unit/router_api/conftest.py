"""The application over FakeGenerator, reached without a socket."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from shoal_router.api.app import create_app
from shoal_router.api.fake import FakeGenerator
from shoal_router.constrain.check import FakeCheck
from shoal_router.settings import ApiSettings
from shoal_router.text.fake import EOS_ID, fake_text_model
from shoal_router.text.model import TextModel

USER = {"role": "user", "content": "hi"}


@dataclass
class Bench:
    """An application and what stands behind it. `say` sets what the model answers."""

    text: TextModel
    generator: FakeGenerator
    settings: ApiSettings
    grammars: FakeCheck = field(default_factory=FakeCheck)
    clients: list[httpx.AsyncClient] = field(default_factory=list)
    _client: httpx.AsyncClient | None = field(default=None, init=False)

    def say(self, answer: str, *, ends: bool = True) -> None:
        ids = self.ids(answer)
        self.generator.script = lambda _: (*ids, EOS_ID) if ends else ids

    def ids(self, text: str) -> tuple[int, ...]:
        return self.text.encode(text, add_special_tokens=False)

    @property
    def client(self) -> httpx.AsyncClient:
        if self._client is None:
            app = create_app(self.generator, self.text, self.settings, grammars=self.grammars)
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            self._client = httpx.AsyncClient(transport=transport, base_url="http://router")
            self.clients.append(self._client)
        return self._client

    async def chat(self, **body: Any) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", json={"model": "fake", "messages": [USER]} | body)

    async def complete(self, **body: Any) -> httpx.Response:
        return await self.client.post("/v1/completions", json={"model": "fake", "prompt": "hi"} | body)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    generator = FakeGenerator(script=lambda _: ())
    made = Bench(fake_text_model(), generator, ApiSettings(served_names=("fake", "org/fake")))
    made.say("Hello 😀 ไทย 世界")
    yield made
    for client in made.clients:
        await client.aclose()
    assert generator.running == 0, "a sequence was left running"


def parse_events(body: str) -> list[Any]:
    """The data of every event; comments as strings; `[DONE]` as it is."""
    assert body.endswith("\n\n")
    events: list[Any] = []
    for block in body.removesuffix("\n\n").split("\n\n"):
        assert "\n" not in block, "an event is one line"
        if block.startswith(":"):
            events.append(block)
            continue
        assert block.startswith("data: ")
        data = block.removeprefix("data: ")
        events.append(data if data == "[DONE]" else json.loads(data))
    return events


@pytest.fixture
def events() -> Callable[[httpx.Response], list[Any]]:
    return lambda response: parse_events(response.text)
