"""The repository's layout: what must not stand where, since Python would import it in place of something else."""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from pathlib import Path

import shoal

ROOT = Path(__file__).parents[3]


def shadows(root: Path) -> list[Path]:
    """Modules of folders that are called like one of Python's own: with them `import operator` would find ours."""
    folders = [path for path in root.iterdir() if path.is_dir() and path.name in sys.stdlib_module_names]
    return sorted(module for folder in folders for module in folder.glob("*.py"))


def test_a_folder_that_is_called_like_a_module_of_python_holds_none_itself(tmp_path: Path) -> None:
    (tmp_path / "operator" / "shoal_operator").mkdir(parents=True)
    (tmp_path / "operator" / "shoal_operator" / "__init__.py").touch()
    (tmp_path / "router").mkdir()
    (tmp_path / "router" / "loose.py").touch()
    assert shadows(tmp_path) == []
    (tmp_path / "operator" / "__init__.py").touch()
    assert shadows(tmp_path) == [tmp_path / "operator" / "__init__.py"]
    assert shadows(ROOT) == []


def test_tests_are_no_package_and_have_names_of_their_own() -> None:
    """pytest's importlib mode: a package would give the tests' folders names, and equal names hide one another."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_the_version_stands_in_two_places_and_is_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert shoal.__version__ == project["version"]
