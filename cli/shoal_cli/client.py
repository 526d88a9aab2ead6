"""A small client of the router: streamed answers for `shoal chat` and `shoal run --prompt`, and the router's status.

Every failure becomes one line that says what to do; every wait has a deadline. Leaving the stream cancels the answer:
closing the connection is how the router learns of it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

from shoal.errors import ResourceError, ShoalError, StageError, UsageError
from shoal_cli.sse import chunks

# The router writes a keep-alive comment at least every 15 s: silence for longer means that it is gone.
_TIMEOUT = httpx.Timeout(connect=5.0, read=60.0, write=10.0, pool=5.0)


@dataclass(slots=True)
class Answer:
    """What is known of an answer once it has been streamed. Times are seconds from the request; `stopped` by Ctrl-C."""

    text: str = ""
    first_token_s: float | None = None
    last_token_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = ""
    stopped: bool = False
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float | None:
        """Decode speed: the tokens after the first over the time after the first. None below two tokens."""
        if self.first_token_s is None or self.completion_tokens < 2 or self.last_token_s <= self.first_token_s:
            return None
        return (self.completion_tokens - 1) / (self.last_token_s - self.first_token_s)


class RouterClient:
    """Speaks to one router. An async context manager; `transport` is for tests."""

    def __init__(self, url: str, api_key: str | None = None, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.url = router_url(url)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            # trust_env=False: a proxy of the environment must not stand between this machine and its own router.
            self._http = httpx.AsyncClient(
                base_url=self.url, headers=headers, timeout=_TIMEOUT, transport=transport, trust_env=False
            )
        except httpx.InvalidURL as error:
            raise _not_a_url(self.url) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def models(self) -> list[str]:
        """The names under which models are served."""
        path = "/v1/models"
        try:
            return [str(entry["id"]) for entry in (await self._get(path))["data"]]
        except (KeyError, TypeError):
            raise self._unlike(path) from None

    async def status(self) -> dict[str, Any]:
        """The router's own account: ready, detail, and of each pipeline its steps and the timings of its stages."""
        return await self._get("/status")

    async def stream(self, path: str, body: dict[str, Any], answer: Answer) -> AsyncGenerator[str, None]:
        """POST a streaming request to `/v1/chat/completions` or `/v1/completions`; yield text, fill in `answer`."""
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        started = time.monotonic()
        try:
            async with self._http.stream("POST", path, json=body) as response:
                if response.is_error:
                    await response.aread()
                    raise _refusal(response)
                async for chunk in chunks(response.aiter_lines()):
                    if usage := chunk.get("usage"):
                        answer.usage = usage
                        answer.prompt_tokens = usage["prompt_tokens"]
                        answer.completion_tokens = usage["completion_tokens"]
                    for choice in chunk.get("choices", []):
                        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
                        text = choice.get("text") or choice.get("delta", {}).get("content") or ""
                        if text:
                            answer.last_token_s = time.monotonic() - started
                            if answer.first_token_s is None:
                                answer.first_token_s = answer.last_token_s
                            answer.text += text
                            yield text
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    async def _get(self, path: str) -> dict[str, Any]:
        try:
            response = await self._http.get(path)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if response.is_error:
            raise _refusal(response)
        try:
            data = response.json()
        except ValueError:
            data = None
        if not isinstance(data, dict):
            raise self._unlike(path)
        return data

    def _unlike(self, path: str) -> StageError:
        return StageError(f"{self.url}{path} does not answer like a shoal router")

    def _unreachable(self, error: httpx.TransportError) -> ShoalError:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return ResourceError(
                f"no router answers at {self.url}: start one with `shoal run MANIFEST`, or name another with --url"
            )
        if isinstance(error, httpx.UnsupportedProtocol):
            return _not_a_url(self.url)
        return StageError(f"the router at {self.url} broke the connection: {type(error).__name__}: {error}")


def router_url(url: str) -> str:
    """The router's address without what is often copied along: a slash at the end, the `/v1` of an OpenAI base URL."""
    return url.rstrip("/").removesuffix("/v1")


def _not_a_url(url: str) -> UsageError:
    return UsageError(f"{url!r} is not a URL of a router: it should look like http://127.0.0.1:8000")


def _refusal(response: httpx.Response) -> ShoalError:
    """The router's OpenAI error body as an error of ours: 4xx is the caller's input, 5xx the pipeline."""
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = response.text.strip()[:200] or response.reason_phrase
    kind = UsageError if response.status_code < 500 and response.status_code != 429 else StageError
    return kind(f"the router answered {response.status_code}: {message}")
