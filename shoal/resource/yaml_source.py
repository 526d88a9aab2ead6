"""YAML a person wrote -> plain data with the line of each field -> a validated type, or one line on what is wrong.

Data is validated as JSON would be, strictly: what the API server would refuse is refused here, with the file, the
line and the path of the field. `null` means "not given", as it does for the API server.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from shoal.errors import ManifestError

MAX_BYTES = 1 << 20
MAX_FIELDS = 100_000
Path = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)


class _JsonLoader(yaml.SafeLoader):
    """SafeLoader without timestamps: a revision such as 2025-01-01 stays a string, as in the API server."""


_JsonLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data, where it came from, and the line of each field (empty for data that never was text)."""

    data: Any
    origin: str
    lines: Mapping[Path, int] = field(default_factory=dict)

    def where(self, path: Path) -> str:
        """`origin:line` of the field, or of the nearest field around it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return f"{self.origin}:{self.lines[path[:length]]}"
        return self.origin


def read_document(text: str, origin: str) -> Document:
    """Parse the one YAML document of `text`. Raises ManifestError for anything else."""
    if len(text) > MAX_BYTES:
        raise ManifestError(f"{origin}: more than {MAX_BYTES >> 20} MiB of YAML")
    try:
        loader = _JsonLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                raise ManifestError(f"{origin}: empty")
            lines = dict(islice(_lines_of(node, (), origin), MAX_FIELDS + 1))
            if len(lines) > MAX_FIELDS:
                raise ManifestError(f"{origin}: more than {MAX_FIELDS} fields")
            data = loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f":{mark.line + 1}" if mark else ""
        problem = error.problem or error.context or "not YAML"
        if "but found another document" in problem:
            problem = "holds several YAML documents; give one a file"
        raise ManifestError(f"{origin}{line}: {problem}") from error
    except yaml.YAMLError as error:
        raise ManifestError(f"{origin}: not YAML: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise ManifestError(f"{origin}: nested too deeply") from None
    return Document(data=data, origin=origin, lines=lines)


def _lines_of(node: yaml.Node, path: Path, origin: str) -> Iterator[tuple[Path, int]]:
    """Yield the line of every field; raises ManifestError when a mapping names a field twice."""
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            name = str(key.value)
            if name in seen and name != "<<":
                where = dotted((*path, name))
                raise ManifestError(f"{origin}:{line}: {where}: given twice (first in line {seen[name]})")
            seen[name] = line
            yield (*path, name), line
            yield from _lines_of(value, (*path, name), origin)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*path, index), value.start_mark.line + 1
            yield from _lines_of(value, (*path, index), origin)


def validated(model: type[Model], document: Document) -> Model:
    """Validate the document's data. Raises ManifestError with one line for the first thing that is wrong."""
    if not isinstance(document.data, Mapping):
        raise ManifestError(f"{document.origin}: must be a mapping of fields, it is {_kind_of(document.data)}")
    try:
        text = json.dumps(_without_nulls(document.data))
    except (TypeError, ValueError) as error:
        raise ManifestError(f"{document.origin}: holds something that JSON cannot say: {error}") from error
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise ManifestError(_one_line(model, document, error.errors(include_url=False))) from error


def _without_nulls(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _without_nulls(value) for key, value in data.items() if value is not None}
    if isinstance(data, list):
        return [_without_nulls(value) for value in data]
    return data


def _one_line(model: type[BaseModel], document: Document, errors: list[ErrorDetails]) -> str:
    first = errors[0]
    # The field that a rule blames is relative to the object that has the rule.
    blamed = first["ctx"]["field"].split(".") if first["type"] == "rule" and first["ctx"]["field"] else []
    path: Path = (*(part for part in first["loc"] if part != "[key]"), *blamed)
    rest = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{document.where(path)}: {dotted(path)}: {_in_words(model, path, first)}{rest}"


def dotted(path: Path) -> str:
    """A field's path as people write it: spec.stages.manual[1].node."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "document"


def _in_words(model: type[BaseModel], path: Path, error: ErrorDetails) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return "unknown field" + _did_you_mean(model, path)
    if kind == "rule":
        return str(context["reason"])
    if kind == "value_error":
        return str(context["error"])
    if kind == "string_pattern_mismatch":
        return f"must match {context['pattern']}, found {_shown(error['input'])}"
    if kind in ("enum", "literal_error"):
        return f"must be {context['expected']}, found {_shown(error['input'])}"
    message = error["msg"].replace("Input should be", "must be").replace("Input should", "must")
    return f"{message[0].lower()}{message[1:]}, found {_shown(error['input'])}"


def _shown(value: Any) -> str:
    return repr(value)[:80] if isinstance(value, str | int | float | bool) else _kind_of(value)


def _kind_of(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else f"{value!r}"[:80]


def _did_you_mean(model: type[BaseModel], path: Path) -> str:
    """Suggest the field that was meant, among those of the object at `path`."""
    names = _field_names(model, path[:-1])
    close = difflib.get_close_matches(str(path[-1]), names, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known are {', '.join(names)}" if names else ""


def _field_names(model: type[BaseModel], path: Path) -> list[str]:
    for part in path:
        if isinstance(part, int):
            continue
        known = {info.alias or name: info.annotation for name, info in model.model_fields.items()}
        inner = _model_in(known.get(part))
        if inner is None:
            return []
        model = inner
    return [info.alias or name for name, info in model.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The pydantic type inside an annotation: of `tuple[T, ...]`, `T | None` and `Annotated[T, …]` it is T."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        found = _model_in(argument)
        if found is not None:
            return found
    return None
