"""The endpoints of the Responses API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal_router.api import document
from shoal_router.api.answers import Job
from shoal_router.api.edge import key_of
from shoal_router.api.errors import ApiError
from shoal_router.api.prepare import Served, caller_of, chat_job
from shoal_router.api.responses.items import messages_of
from shoal_router.api.responses.kept import KeptResponses
from shoal_router.api.responses.layout import ResponseLayout
from shoal_router.api.responses.request import ResponseRequest, chat_request, renamed

Answer = Callable[[Job, bool | None, Request], Awaitable[Response]]


def responses_router(served: Served, answer: Answer) -> APIRouter:
    """`answer` runs a job, whole or as a stream."""
    router = APIRouter(prefix="/v1/responses")
    kept = KeptResponses()

    @router.post("", response_model=None, responses=document.answer("response", "created_at", "output", "status"))
    async def create(body: ResponseRequest, request: Request) -> Response:
        caller = caller_of(request.scope)
        before: list[dict[str, Any]] = []
        if body.previous_response_id is not None:
            before = kept.get(body.previous_response_id, caller.key, param="previous_response_id").messages
        messages = [*before, *messages_of(body.input)]

        def finished(response: dict[str, Any]) -> None:
            if body.store is not False:
                kept.keep(caller.key, response, [*messages, *messages_of(response["output"])])

        layout = ResponseLayout(body, served.text.token_bytes, finished)
        chat = chat_request(body, messages)
        try:
            job = await chat_job(chat, served, caller, layout)
        except ApiError as error:
            raise renamed(error) from error
        return await answer(replace(job, prompt_param="input"), body.stream, request)

    @router.get("/{response_id}")
    async def retrieve(response_id: str, request: Request) -> dict[str, Any]:
        return kept.get(response_id, key_of(request.scope), param=None).response

    @router.delete("/{response_id}")
    async def delete(response_id: str, request: Request) -> dict[str, Any]:
        kept.forget(response_id, key_of(request.scope))
        return {"id": response_id, "object": "response", "deleted": True}

    return router
