"""Traps of names: `operator` is a module of Python's own, and folders of tests are no packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_folder_operator_holds_no_python_files():
    assert not list((ROOT / "operator").glob("*.py"))


def test_no_folder_of_tests_is_a_package():
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_pythons_own_operator_is_found_from_the_repository():
    code = "import sys; sys.path.insert(0, '.'); import operator; print(operator.add(1, 2))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "3"
