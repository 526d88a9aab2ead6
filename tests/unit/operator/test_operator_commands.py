"""What pods are told to run, the programs understand: every command line goes through its real parser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal_router.settings import parse_arguments as parse_router
from shoal_stage.compile.command import _parser as compile_parser
from shoal_stage.doctor.command import doctor_parser
from shoal_stage.draft.settings import parse_arguments as parse_draft
from shoal_stage.server.settings import parse_arguments as parse_stage
from shoal_stage.store.__main__ import _parser as store_parser

GOLDEN = Path(__file__).parent / "golden"


def commands() -> list[Any]:
    found = []
    for file in sorted(GOLDEN.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            if document.get("kind") not in ("Deployment", "Job"):
                continue
            pod = document["spec"]["template"]["spec"]
            for container in [*pod.get("initContainers", []), *pod["containers"]]:
                name = f"{file.stem}-{document['metadata']['name']}-{container['name']}"
                found.append(pytest.param(container["command"], id=name))
    return found


@pytest.mark.parametrize("command", commands())
def test_every_command_line_is_understood(command: list[str]) -> None:
    match command:
        case ["python", "-m", "shoal_stage", "serve", *rest]:
            settings = parse_stage(rest)
            assert str(settings.model).startswith("/models")
        case ["python", "-m", "shoal_stage", "draft", *rest]:
            draft = parse_draft(rest)
            assert str(draft.model).startswith("/draft")
            assert draft.listen == "127.0.0.1:50061"
        case ["python", "-m", "shoal_stage", "compile", *rest]:
            assert compile_parser().parse_args(rest).output.is_absolute()
        case ["python", "-m", "shoal_stage", "doctor", *rest]:
            assert doctor_parser().parse_args(rest).device in ("GPU", "NPU")
        case ["python", "-m", "shoal_stage.store", *rest]:
            assert store_parser().parse_args(rest)
        case ["python", "-m", "shoal_router", *rest]:
            assert parse_router(rest).port == 8000
        case _:
            assert command in (["chown", "10001:10001", where] for where in ("/models", "/draft"))
