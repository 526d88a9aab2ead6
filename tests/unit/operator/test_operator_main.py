"""The operator as a program."""

from __future__ import annotations

import getpass

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
    assert await run(OperatorSettings(pod_name="shoal-operator-0")) == 1
