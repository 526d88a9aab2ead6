"""Typed errors survive the wire, and everything else becomes one of them."""

from __future__ import annotations

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from shoal.errors import StageError
from shoal.wire import errors


def rpc_error(code: grpc.StatusCode, trailing: Metadata, details: str) -> AioRpcError:
    return AioRpcError(code, Metadata(), trailing, details)


def subclasses(cls: type[StageError]) -> set[type[StageError]]:
    return {sub for direct in cls.__subclasses__() for sub in {direct, *subclasses(direct)}}


def test_every_stage_error_has_one_code():
    assert set(errors.CODES) == {cls for cls in subclasses(StageError) if cls.__module__ == errors.__name__}


@pytest.mark.parametrize("cls", list(errors.CODES))
def test_the_class_is_raised_again_on_the_other_side(cls):
    trailing = Metadata((errors.ERROR_KEY, cls.__name__))
    error = errors.from_rpc_error(rpc_error(errors.CODES[cls], trailing, "why"), "pc-03:7001")
    assert type(error) is cls
    assert "pc-03:7001" in str(error)
    assert "why" in str(error)


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.StageUnreachable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.StageUnreachable),
        (grpc.StatusCode.UNKNOWN, errors.StageFailed),
    ],
)
def test_errors_without_a_name_are_told_apart_by_code(code, cls):
    trailing = Metadata((errors.ERROR_KEY, "SomethingNewer"))
    assert type(errors.from_rpc_error(rpc_error(code, trailing, "gone"), "x:1")) is cls
