"""What tests of several parts use: a package loaded anew with one piece of its source replaced."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

import pytest

Mutate = Callable[[str, str, str], AbstractContextManager[Callable[[str], ModuleType]]]


class _Mutant(MetaPathFinder, SourceFileLoader):
    """Finds one module, with one piece of its source replaced."""

    def __init__(self, name: str, old: str, new: str) -> None:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        SourceFileLoader.__init__(self, name, spec.origin)
        source = Path(spec.origin).read_text()
        assert old in source, f"{name} does not contain {old!r} any more"
        self._source = source.replace(old, new)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return spec_from_file_location(fullname, self.path, loader=self) if fullname == self.name else None

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec")


@contextmanager
def _mutated(module: str, old: str, new: str) -> Iterator[Callable[[str], ModuleType]]:
    package, _, name = module.rpartition(".")
    parent, _, attribute = package.rpartition(".")
    finder = _Mutant(module, old, new)
    mine = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(package)}
    sys.meta_path.insert(0, finder)
    try:
        yield lambda name: importlib.import_module(f"{package}.{name}")
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.startswith(package)]:
            del sys.modules[name]
        sys.modules.update(mine)
        setattr(sys.modules[parent], attribute, mine[package])


@pytest.fixture(scope="session")
def mutated() -> Mutate:
    """`with mutated(module, old, new) as load`: inside, `load(name)` gives that module of the package with the change.

    Every module of the package is loaded anew, so that all see the change; afterwards the product is as it was.
    """
    return _mutated
