"""A span for each request of the API, and its context for everything that serves it. Only with traces.

Plain ASGI inside Edge and Gate: what is refused for want of a key has no trace. The context travels by a context
variable, which the tasks of a request inherit, so that nothing between here and the step loop has to pass it on.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.tracing import Traces, current_trace
from shoal_router.api.edge import request_id_of

_HEADER = b"traceparent"


class Traced:
    """Spans of POST requests: those that compute."""

    def __init__(self, app: ASGIApp, traces: Traces) -> None:
        self._app = app
        self._traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        parent = next((value.decode("latin-1") for name, value in scope["headers"] if name == _HEADER), "")
        span = self._traces.begin(f"POST {scope['path']}", parent)
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        token = current_trace.set(span.context)
        try:
            await self._app(scope, receive, noting)
        finally:
            current_trace.reset(token)
            span.end({"shoal.request_id": request_id_of(scope), "http.response.status_code": status})
