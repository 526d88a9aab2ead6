"""Responses that one of several routers keeps: `GET` and `DELETE /v1/responses/{id}`.

Neither the id nor the URL says whose it is, so every router is asked at once. Nothing has to be remembered for that:
a gateway that was just started finds what another one's client has made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from shoal_router.api.errors import ApiError

_NOT_HERE = (404, 401)
"""What a router answers that does not have it, or does not know the caller; the first says more."""

Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class RouterAnswer:
    """A whole answer, encoded as its headers say."""

    status: int
    headers: list[Header]
    body: bytes


async def answer_of_keeper(client: httpx.AsyncClient, requests: Sequence[httpx.Request]) -> RouterAnswer | None:
    """The answer of the router that keeps the response: the same request, to each.

    When none does, one of their refusals; None when a router that may keep it does not answer. Raises ApiError when
    there is no router.
    """
    if not requests:
        raise ApiError(404, "This gateway has no models yet, and so no responses.", code="response_not_found")
    answers = await asyncio.gather(*(_ask(client, request) for request in requests))
    came = [answer for answer in answers if answer is not None]
    for answer in came:
        if answer.status not in _NOT_HERE:
            return answer
    return min(came, key=lambda answer: _NOT_HERE.index(answer.status)) if len(came) == len(answers) else None


async def _ask(client: httpx.AsyncClient, request: httpx.Request) -> RouterAnswer | None:
    try:
        response = await client.send(request, stream=True)
        try:
            body = b"".join([chunk async for chunk in response.aiter_raw()])
        finally:
            await response.aclose()
    except httpx.TransportError:
        return None
    return RouterAnswer(response.status_code, response.headers.raw, body)
