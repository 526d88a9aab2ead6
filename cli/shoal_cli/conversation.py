"""A conversation with a served model: the messages so far, and one streamed answer at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import httpx

from shoal.errors import ShoalError, UsageError
from shoal_cli.client import Answer, RouterClient, router_url


class Conversation:
    """Holds what was said. A message whose answer failed is taken back, so that it can be said again."""

    def __init__(
        self,
        url: str,
        api_key: str | None,
        system: str | None,
        options: dict[str, Any],
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._connection = (url, api_key, transport)
        self.url = router_url(url)
        self._system = system
        self._options = options
        self._model = ""
        self.messages: list[dict[str, str]] = []
        self.reset()

    def connect(self, model: str | None) -> str:
        """Find out what is served; returns the model's name. Raises UsageError when `model` is not among it."""
        served = asyncio.run(self._served())
        if not served:
            raise UsageError(f"the router at {self.url} serves no model")
        if model is not None and model not in served:
            raise UsageError(f"the router at {self.url} does not serve {model!r}: it serves {', '.join(served)}")
        self._model = model or served[0]
        return self._model

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    def say(self, text: str, write: Callable[[str], None]) -> Answer:
        """Send a message and stream the answer to `write`. Ctrl-C ends the answer and keeps what came of it."""
        self.messages.append({"role": "user", "content": text})
        answer = Answer()
        try:
            # asyncio.run turns Ctrl-C into a cancellation of the stream, and then raises KeyboardInterrupt here.
            asyncio.run(self._stream(answer, write))
        except KeyboardInterrupt:
            answer.stopped = True
            write(" [stopped]")
        except ShoalError:
            self.messages.pop()
            raise
        self.messages.append({"role": "assistant", "content": answer.text})
        return answer

    async def _served(self) -> list[str]:
        async with RouterClient(*self._connection) as client:
            return await client.models()

    async def _stream(self, answer: Answer, write: Callable[[str], None]) -> None:
        body = {"model": self._model, "messages": self.messages, **self._options}
        async with (
            RouterClient(*self._connection) as client,
            aclosing(client.stream("/v1/chat/completions", body, answer)) as stream,
        ):
            async for text in stream:
                write(text)
