"""The operator as a program."""

from __future__ import annotations

import asyncio
import getpass
import signal

import kopf
import pytest

from shoal_operator.__main__ import run
from shoal_operator.settings import OperatorSettings


async def test_its_user_needs_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its image it runs as a number without an entry in /etc/passwd; kopf would ask who that is."""

    def nobody() -> str:
        raise OSError("No username set in the environment")

    async def only_the_identity(**given: object) -> None:
        if given.get("identity") is None:
            getpass.getuser()
        assert given["identity"] == "shoal-operator-0"

    monkeypatch.setattr(getpass, "getuser", nobody)
    monkeypatch.setattr(kopf, "operator", only_the_identity)
    assert await run(OperatorSettings(pod_name="shoal-operator-0")) == 0


@pytest.mark.parametrize(("broken", "code"), [(False, 0), (True, 1)])
async def test_its_exit_code_says_whether_it_ended_by_itself(
    monkeypatch: pytest.MonkeyPatch, broken: bool, code: int
) -> None:
    """kopf takes SIGTERM for itself, and its coroutine ends in the same way whatever the cause was."""

    async def takes_the_signals(*, memo: kopf.Memo, **_: object) -> None:
        asked = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
        memo.running.broken = broken
        signal.raise_signal(signal.SIGTERM)
        await asked.wait()

    monkeypatch.setattr(kopf, "operator", takes_the_signals)
    assert await run(OperatorSettings(pod_name="shoal-operator-0")) == code
