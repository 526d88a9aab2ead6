"""The gateway's ASGI application.

A request's `model` is read from its body; headers and body then go to that model's router as they came, and the answer
comes back as it arrives, so that streams, errors and keep-alives stay the router's. What names a kept response instead
goes to every router (kept.py). When the client leaves, the
connection to the router closes, and the router frees what the answer held.
"""

from __future__ import annotations

import json
import logging
import ssl
from typing import Any, Final

import httpx
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.api_keys import ApiKeys
from shoal_router.api.disconnect import ClientLeft, while_connected
from shoal_router.api.edge import Edge, request_id_of
from shoal_router.api.errors import SERVER_ERROR, ApiError, invalid
from shoal_router.api.gate import Gate
from shoal_router.gateway.kept import Header, answer_of_keeper
from shoal_router.gateway.routes import Routes

log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 5.0
MAX_BODY_BYTES: Final = 8 * 2**20
BODY_SECONDS: Final = 30.0
# Of one connection (RFC 9110, 7.6.1), or made anew for the next one.
_NOT_PASSED_ON: Final = frozenset(
    {b"host", b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"x-request-id"}
    | {b"proxy-authorization", b"proxy-connection", b"content-length", b"expect", b"date"}
)
_HEALTH: Final = ("/health", "/health/live", "/health/ready")


def create_gateway(routes: Routes, client: httpx.AsyncClient, keys: ApiKeys | None = None) -> ASGIApp:
    """The application. Without `keys` the routers alone decide who may call; with them, both do."""
    app: ASGIApp = Gateway(routes, client)
    if keys is not None:
        app = Gate(app, keys=keys)
    return Edge(app, max_body_bytes=MAX_BODY_BYTES, body_seconds=BODY_SECONDS)


def gateway_client(answer_seconds: float) -> httpx.AsyncClient:
    """A client for the routers. `answer_seconds`: longest silence of a router; streams speak at least every minute."""
    timeout = httpx.Timeout(answer_seconds, connect=CONNECT_SECONDS, pool=None)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
    # The system's authorities, and those of SSL_CERT_FILE: a cluster's own are not in any bundle.
    trusted = ssl.create_default_context()
    return httpx.AsyncClient(timeout=timeout, limits=limits, verify=trusted, trust_env=False, follow_redirects=False)


class Gateway:
    """ASGI, inside Edge."""

    def __init__(self, routes: Routes, client: httpx.AsyncClient) -> None:
        self._routes = routes
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer by itself what concerns no single model, pass the rest on. Raises ApiError."""
        try:
            await self._route(scope, receive, send)
        except ClientLeft:
            log.info("client left", extra={"request_id": request_id_of(scope)})

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if path in _HEALTH:
            await JSONResponse({"status": "ok"})(scope, receive, send)
        elif path == "/v1/models" and method in ("GET", "HEAD"):
            await JSONResponse({"object": "list", "data": self._models()})(scope, receive, send)
        elif path.startswith("/v1/models/"):
            await self._pass_on(path.removeprefix("/v1/models/"), b"", scope, receive, send)
        elif path.startswith("/v1/responses/") and method in ("GET", "DELETE"):
            await while_connected(receive, self._ask_all(scope, send))
        elif method == "POST":
            body = await _body(receive)
            await self._pass_on(_model_of(body), body, scope, receive, send)
        else:
            message = f"Unknown request URL: {method} {path}. A gateway passes on what names a model."
            raise ApiError(404, message, code="unknown_url")

    def _models(self) -> list[dict[str, Any]]:
        return [
            {"id": name, "object": "model", "created": 0, "owned_by": "shoal"} for name in sorted(self._routes.table())
        ]

    def _router_of(self, model: str) -> str:
        table = self._routes.table()
        if model not in table:
            served = ", ".join(sorted(table)) or "none yet"
            message = f"The model '{model[:128]}' does not exist. This gateway has: {served}."
            raise ApiError(404, message, param="model", code="model_not_found")
        return table[model]

    async def _pass_on(self, model: str, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        request = self._request(self._router_of(model), body, scope)
        await while_connected(receive, self._answer(request, model, send))

    def _request(self, url: str, body: bytes, scope: Scope) -> httpx.Request:
        """The client's request, to a router."""
        headers = [(name, value) for name, value in scope["headers"] if name not in _NOT_PASSED_ON]
        headers.append((b"x-request-id", request_id_of(scope).encode()))
        path = scope.get("raw_path") or scope["path"].encode()
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        target = httpx.URL(url).copy_with(raw_path=path + query)
        return self._client.build_request(scope["method"], target, headers=headers, content=body)

    async def _ask_all(self, scope: Scope, send: Send) -> None:
        urls = sorted(set(self._routes.table().values()))
        answer = await answer_of_keeper(self._client, [self._request(url, b"", scope) for url in urls])
        if answer is None:
            raise _unavailable("A router that may keep this response")
        await send({"type": "http.response.start", "status": answer.status, "headers": _passed(answer.headers)})
        await send({"type": "http.response.body", "body": answer.body, "more_body": False})

    async def _answer(self, request: httpx.Request, model: str, send: Send) -> None:
        try:
            response = await self._client.send(request, stream=True)
        except httpx.TransportError as error:
            log.warning(
                "no answer from a router", extra={"model": model, "url": str(request.url), "reason": repr(error)}
            )
            raise _unavailable(f"The router of '{model}'") from error
        try:
            headers = _passed(response.headers.raw)
            await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
            # Raw: an encoded body stays as its headers say.
            async for chunk in response.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await response.aclose()


async def _body(receive: Receive) -> bytes:
    chunks = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)


def _model_of(body: bytes) -> str:
    try:
        model = json.loads(body).get("model")
    except (ValueError, AttributeError, RecursionError):
        message = "The body must be a JSON object, sent with Content-Type: application/json."
        raise ApiError(400, message, code="invalid_json") from None
    if not isinstance(model, str):
        raise invalid("Missing required parameter: 'model'.", param="model", code="missing_required_parameter")
    return model


def _passed(headers: list[Header]) -> list[Header]:
    """Those of a router's answer that the client gets."""
    lower = [(name.lower(), value) for name, value in headers]
    return [(name, value) for name, value in lower if name == b"content-length" or name not in _NOT_PASSED_ON]


def _unavailable(who: str) -> ApiError:
    message = f"{who} does not answer right now."
    return ApiError(503, message, kind=SERVER_ERROR, code="pipeline_unavailable", retry_after=2)
