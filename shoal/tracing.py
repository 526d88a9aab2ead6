"""Traces of requests over router and stages, in OpenTelemetry's form. Off unless OTEL_EXPORTER_OTLP_ENDPOINT is set.

    router: request ─┬─ queue, prefill, decode          stage: stage 0, stage 1, … (of that request)
                     └─ its context goes with the sequence's first row (SequenceStart.trace)

Spans are made when they are over, from stamps that are taken anyway: a token costs nothing here. The exporter sends
them in batches from a thread of its own; while its collector does not answer they are dropped, and nobody waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol

from shoal.errors import UsageError

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""Base URL of a collector that speaks OTLP over HTTP, such as http://collector:4318."""

Attributes = Mapping[str, str | int | float | bool]

current_trace: ContextVar[str] = ContextVar("current_trace", default="")
"""The context of the request that is being served, as the header `traceparent` has it; "" outside of a trace."""


class Span(Protocol):
    """A span that has begun."""

    @property
    def context(self) -> str:
        """Its context for its children, as the header `traceparent` has it; "" if it is not recorded."""
        ...

    def end(self, attributes: Attributes) -> None:
        """It is over."""
        ...


class Traces(Protocol):
    """Makes spans. Times are of time.monotonic."""

    def begin(self, name: str, parent: str) -> Span:
        """A span that begins now, under a parent's context or, with "", as a trace of its own."""
        ...

    def record(self, name: str, parent: str, start: float, end: float, attributes: Attributes) -> None:
        """A span that is over already."""
        ...

    def close(self) -> None:
        """Send what was not sent yet, within seconds."""
        ...


def traces_of_environment(service: str) -> Traces | None:
    """The traces of this process as the environment asks for them; None: it does not."""
    if not os.environ.get(ENDPOINT):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise UsageError(f"{ENDPOINT} is set, but traces are not installed: pip install 'shoal[traces]'") from error
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: service}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=_SEND_SECONDS)))
    return OpenTelemetryTraces(provider)


_SEND_SECONDS: Final = 5
_CLOSE_MS: Final = 3000


@dataclass(frozen=True, slots=True)
class _Begun:
    span: Any

    @property
    def context(self) -> str:
        """See Span.context."""
        from opentelemetry.trace import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        if self.span.is_recording():
            TraceContextTextMapPropagator().inject(carrier, set_span_in_context(self.span))
        return carrier.get("traceparent", "")

    def end(self, attributes: Attributes) -> None:
        """See Span.end."""
        self.span.set_attributes(attributes)
        self.span.end()


class OpenTelemetryTraces:
    """See Traces. Spans go to the provider's processors."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("shoal")
        self._offset = time.time() - time.monotonic()

    def begin(self, name: str, parent: str) -> Span:
        """See Traces.begin."""
        return _Begun(self._tracer.start_span(name, context=_context(parent)))

    def record(self, name: str, parent: str, start: float, end: float, attributes: Attributes) -> None:
        """See Traces.record."""
        span = self._tracer.start_span(
            name, context=_context(parent), start_time=self._nanoseconds(start), attributes=attributes
        )
        span.end(end_time=self._nanoseconds(end))

    def close(self) -> None:
        """See Traces.close."""
        self._provider.force_flush(_CLOSE_MS)
        self._provider.shutdown()

    def _nanoseconds(self, at: float) -> int:
        return int((at + self._offset) * 1e9)


def _context(parent: str) -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": parent} if parent else {})
