"""docs/reference/cli.md is what the commands say today, sharded-model.md what the CRD does."""

from __future__ import annotations

from pathlib import Path

from shoal.resource.reference import reference as crd_reference
from shoal_cli.reference import reference

ROOT = Path(__file__).parents[3]


def test_the_reference_is_up_to_date() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert page == reference(), "run `make generate` and commit docs/reference/cli.md"


def test_every_command_and_exit_code_is_in_it() -> None:
    page = reference()
    for command in ("run", "compile", "plan", "chat", "bench", "doctor", "inspect", "version"):
        assert f"## shoal {command}" in page
    assert "3         no plan fits" in page


def test_the_reference_of_the_resource_is_up_to_date() -> None:
    page = (ROOT / "docs" / "reference" / "sharded-model.md").read_text(encoding="utf-8")
    assert page == crd_reference(), "run `make generate` and commit docs/reference/sharded-model.md"
    assert "| **uri** | string |" in page
