"""The one place where a typed error becomes a gRPC status: wraps every method of the server.

The table is shoal.wire.errors.CODES; the class's name goes into trailing metadata, so that the caller raises the
same class again. Anything that is not a StageError is a defect of ours: logged with its traceback, sent as StageFailed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from shoal.errors import StageError
from shoal.wire.errors import CODES, ERROR_KEY, InvalidFrame, StageFailed

_log = logging.getLogger(__name__)


class Refusals(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Maps what a method raises to a status. All methods are coroutines that write to their context."""

    def __init__(self, heard: Callable[[str], None]) -> None:
        """`heard` gets the address of each caller."""
        self._heard = heard

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the method's handler."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return handler
        for kind in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
            inner = getattr(handler, kind)
            if inner is not None:
                return handler._replace(**{kind: _guarded(inner, self._heard)})
        return handler


def _guarded(
    method: Callable[[Any, Any], Awaitable[Any]], heard: Callable[[str], None]
) -> Callable[[Any, Any], Awaitable[Any]]:
    async def call(request: Any, context: Any) -> Any:
        heard(context.peer())
        try:
            return await method(request, context)
        except StageError as error:
            await refuse(context, error)
        except DecodeError:
            await refuse(context, InvalidFrame("the bytes are no message of shoal.stage.v1"))
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the edge: logged whole, and the caller is told
            _log.exception("a call failed unexpectedly")
            await refuse(context, StageFailed(f"{type(error).__name__}: {error}"))

    return call


async def refuse(context: Any, error: StageError) -> None:
    """End the call with the error's code, text and class name."""
    code = CODES.get(type(error), grpc.StatusCode.INTERNAL)
    await context.abort(code, str(error), trailing_metadata=((ERROR_KEY, type(error).__name__),))
