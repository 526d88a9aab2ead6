"""Two operators on one PC: the second says which port it cannot have."""

from __future__ import annotations

import asyncio
import socket

import kopf
import pytest

from shoal.errors import ResourceError
from shoal_operator import handlers
from shoal_operator.__main__ import run
from shoal_operator.cluster.fake import FakeCluster
from shoal_operator.settings import OperatorSettings


async def test_a_port_that_another_operator_has_is_one_line_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = asyncio.Event()

    class Connected(FakeCluster):
        async def __aenter__(self) -> FakeCluster:
            return self

        async def __aexit__(self, *_: object) -> None:
            closed.set()

    async def connect() -> FakeCluster:
        return Connected()

    async def begin(*, memo: kopf.Memo, **_: object) -> None:
        await handlers.start(memo, kopf.OperatorSettings())
        assert memo.running.stop.is_set()
        assert memo.running.task is None
        assert closed.is_set()

    monkeypatch.setattr(handlers, "connect", connect)
    monkeypatch.setattr(kopf, "operator", begin)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = (
            f"the page of all models cannot listen on port {port}: Address already in use; .* SHOAL_PAGE_PORT to a free"
        )
        with pytest.raises(ResourceError, match=line):
            await run(OperatorSettings(metrics_port=0, health_port=0, page_port=port))
