"""The FastAPI application: endpoints over a Generator and a TextModel, every error in OpenAI's form."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response

from shoal.api_keys import ApiKeys
from shoal.errors import ShoalError
from shoal.tracing import Traces
from shoal_router.api import document
from shoal_router.api.answers import AnswerStream, Job, whole_answer
from shoal_router.api.disconnect import ClientLeft, while_connected
from shoal_router.api.edge import Edge, note_rejection, request_id_of
from shoal_router.api.errors import ApiError, from_exception, from_validation
from shoal_router.api.gate import Gate
from shoal_router.api.once import Once
from shoal_router.api.page import add_page
from shoal_router.api.prepare import Served, caller_of, chat_job, check_model, completion_job
from shoal_router.api.requests import ChatRequest, CompletionRequest
from shoal_router.api.responses.endpoints import responses_router
from shoal_router.api.tokens import tokens_router
from shoal_router.api.traced import Traced
from shoal_router.constrain.check import GrammarCheck
from shoal_router.generation import Generator
from shoal_router.settings import ApiSettings
from shoal_router.text.model import TextModel
from shoal_router.watch.feed import Watch


def create_app(
    generator: Generator,
    text: TextModel,
    settings: ApiSettings,
    keys: ApiKeys | None = None,
    watch: Watch | None = None,
    traces: Traces | None = None,
    rejected: Callable[[str], None] = lambda _: None,
    *,
    grammars: GrammarCheck | None = None,
) -> FastAPI:
    """The application. `generator` may become ready later; without `keys` everybody may call, without `watch` there is
    no page, and without `grammars` every answer is free: what would constrain one is refused. `rejected` as in Edge.
    """
    served = Served(generator, text, settings, int(time.time()), grammars)
    # Without the interactive pages: they load their scripts from the internet, which an office cluster may not reach.
    app = FastAPI(
        title="shoal",
        summary="OpenAI-compatible API of one ShardedModel",
        docs_url=None,
        redoc_url=None,
        responses=document.ERRORS,
    )
    _add_error_handlers(app)
    _add_health(app, served)
    _add_models(app, served)
    _add_generation(app, served)
    if watch is not None:
        add_page(app, watch)
    if traces is not None:
        app.add_middleware(Traced, traces=traces)
    app.add_middleware(Once)
    if keys is not None:
        app.add_middleware(
            Gate,
            keys=keys,
            requests_per_key=settings.requests_per_key,
            requests_per_minute=settings.requests_per_minute,
        )
    app.add_middleware(
        Edge, max_body_bytes=settings.max_body_bytes, body_seconds=settings.body_seconds, rejected=rejected
    )
    return app


def _add_generation(app: FastAPI, served: Served) -> None:
    async def answer(job: Job, stream: bool | None, request: Request) -> Response:
        if stream:
            return AnswerStream(job, served.generator, served.settings.keep_alive_seconds)
        try:
            return JSONResponse(await while_connected(request.receive, whole_answer(job, served.generator)))
        except ClientLeft:
            # Nobody reads this; 499 is what proxies log for it.
            return Response(status_code=499)

    @app.post(
        "/v1/chat/completions", response_model=None, responses=document.answer("chat.completion", "created", "choices")
    )
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        job = await chat_job(body, served, caller_of(request.scope))
        return await answer(job, body.stream, request)

    @app.post(
        "/v1/completions", response_model=None, responses=document.answer("text_completion", "created", "choices")
    )
    async def completions(body: CompletionRequest, request: Request) -> Response:
        job = await completion_job(body, served, caller_of(request.scope))
        return await answer(job, body.stream, request)

    app.include_router(responses_router(served, answer))
    app.include_router(tokens_router(served))


def _add_models(app: FastAPI, served: Served) -> None:
    def model(name: str) -> dict[str, Any]:
        context = served.generator.status().max_context or None  # not known before a pipeline was open
        # max_model_len is vLLM's name for it; clients that cut histories to fit look for it there.
        return {"id": name, "object": "model", "created": served.created, "owned_by": "shoal", "max_model_len": context}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model(name) for name in served.settings.served_names]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        check_model(name, served)
        return model(name)


def _add_health(app: FastAPI, served: Served) -> None:
    @app.get("/health/live")
    async def live() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/health")
    @app.get("/health/ready")
    async def ready() -> JSONResponse:
        status = served.generator.status()
        if status.ready:
            return JSONResponse({"status": "ok", "detail": status.detail})
        unavailable = {"status": "unavailable", "detail": status.detail}
        return JSONResponse(unavailable, status_code=503, headers={"Retry-After": "1"})

    @app.get("/status")
    async def status() -> dict[str, Any]:
        """The step loop's account of itself: load, and where each stage's time went since the pipeline opened."""
        return asdict(served.generator.status())


def _add_error_handlers(app: FastAPI) -> None:
    def answer(request: Request, error: ApiError) -> Response:
        note_rejection(request.scope, error)
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def wrong_body(request: Request, error: RequestValidationError) -> Response:
        return answer(request, from_validation(error))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, ApiError):  # raised while the body was read; FastAPI wraps it
            return answer(request, error.__cause__)
        code, message = None, str(error.detail)
        if error.status_code == 404:
            code, message = "unknown_url", f"Unknown request URL: {request.method} {request.url.path}."
        elif error.status_code == 405:
            code, message = "method_not_allowed", f"{request.url.path} does not take {request.method} requests."
        return answer(request, ApiError(error.status_code, message, code=code, headers=dict(error.headers or {})))

    async def known_error(request: Request, error: Exception) -> Response:
        return answer(request, from_exception(error, request_id=request_id_of(request.scope)))

    app.add_exception_handler(ApiError, known_error)
    app.add_exception_handler(ShoalError, known_error)
