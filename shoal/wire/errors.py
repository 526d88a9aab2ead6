"""Typed errors of the hops, and the one table that maps them to gRPC codes.

    StageError
    ├── StaleEpoch            the frame or call belongs to an epoch that is over     FAILED_PRECONDITION
    ├── DigestMismatch        stage and router mean different models                 FAILED_PRECONDITION
    ├── WrongPlace            blocks or order do not fit the pipeline                FAILED_PRECONDITION
    ├── InvalidFrame          shape, dtype, order or ids of a frame are wrong        INVALID_ARGUMENT
    ├── CallerRefused         the caller's certificate names a role that may not do this     PERMISSION_DENIED
    ├── StageNotReady         still loading, or draining                             UNAVAILABLE
    ├── StageUnreachable      no connection, or the deadline passed                  UNAVAILABLE
    ├── StageExhausted        no KV memory left for what was asked                   RESOURCE_EXHAUSTED
    └── StageFailed           the compute thread died; the stage is of no more use   INTERNAL

The class's name travels in trailing metadata, so that the caller raises the same class again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import grpc

from shoal.errors import StageError

ERROR_KEY = "shoal-error"


class StaleEpoch(StageError):
    """The frame or call belongs to an epoch that is over."""


class DigestMismatch(StageError):
    """Stage and router mean different models."""


class WrongPlace(StageError):
    """The stage's blocks or position do not fit the pipeline that is being opened."""


class InvalidFrame(StageError):
    """A frame's shape, dtype, order or ids are wrong."""


class CallerRefused(StageError):
    """The caller's certificate names a role that may not do this."""


class StageNotReady(StageError):
    """The stage is still loading, or draining."""


class StageUnreachable(StageError):
    """No connection to the stage, or it did not answer within the deadline."""


class StageExhausted(StageError):
    """The stage has no KV memory left for what was asked."""


class StageFailed(StageError):
    """The stage's compute thread died; the stage ends itself."""


CODES: dict[type[StageError], grpc.StatusCode] = {
    StaleEpoch: grpc.StatusCode.FAILED_PRECONDITION,
    DigestMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    WrongPlace: grpc.StatusCode.FAILED_PRECONDITION,
    InvalidFrame: grpc.StatusCode.INVALID_ARGUMENT,
    CallerRefused: grpc.StatusCode.PERMISSION_DENIED,
    StageNotReady: grpc.StatusCode.UNAVAILABLE,
    StageUnreachable: grpc.StatusCode.UNAVAILABLE,
    StageExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    StageFailed: grpc.StatusCode.INTERNAL,
}

_BY_NAME = {cls.__name__: cls for cls in CODES}


def from_rpc_error(error: grpc.aio.AioRpcError, where: str) -> StageError:
    """The typed error behind a failed call to the stage at `where`."""
    # The aio Metadata is a mapping at run time; the stub package still calls it a tuple.
    trailing = cast("Mapping[str, str | bytes]", error.trailing_metadata() or {})
    name = trailing.get(ERROR_KEY)
    if isinstance(name, str) and name in _BY_NAME:
        return _BY_NAME[name](f"stage at {where}: {error.details()}")
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return StageUnreachable(f"stage at {where} cannot be reached: {error.details()}")
    return StageFailed(f"stage at {where} failed: {error.code().name}: {error.details()}")
