"""Tool calls as a grammar: a call that must come, or that is right when it comes. Pure.

Each function's arguments are a JSON schema of their own, since the references in it count from its root; the rest of a
call is fixed text in the words of the model's family.

    hermes    <tool_call>\\n{"name": "f", "arguments": {…}}\\n</tool_call>, the next one on a new line
    llama     {"name": "f", "parameters": {…}}, the next one behind "; "
    mistral   [TOOL_CALLS] [{"name": "f", "arguments": {…}}, {…}]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal_router.constrain.constraint import mark, pattern, schema_of, until
from shoal_router.text.call_format import CallFormat

TokenId = Callable[[str], int | None]
"""The id of a special token by its name; None when the vocabulary has the name as text, or not at all."""


@dataclass(frozen=True, slots=True)
class Function:
    """A tool. `parameters`: JSON schema of its arguments, None: any object. `strict`: its calls must be valid."""

    name: str
    parameters: Mapping[str, Any] | None = None
    strict: bool = False


def tool_grammar(
    form: CallFormat,
    functions: Sequence[Function],
    *,
    required: bool,
    parallel: bool,
    content: str | None = None,
    token_id: TokenId,
) -> str | None:
    """The grammar (Lark) of answers that call these functions; None when every answer is one.

    `required`: the answer is calls and nothing else. Otherwise it is text, or `content` (a JSON schema) where given, in
    which a call may begin (hermes, mistral) or which may be a call (llama); without `content` that is worth a grammar
    only if some function is strict. `parallel`: several calls. Raises GrammarRefused.
    """
    if not required and content is None and not any(function.strict for function in functions):
        return None
    if content is not None and not required and form is CallFormat.LLAMA:
        return _content_or_call(functions, content)
    rules = _CALLS[form](functions, parallel, token_id)
    if required:
        start = "start: calls"
    elif content is not None:
        start = f"start: calls | content\ncontent: %json {json.dumps(schema_of(content))}"
    else:
        start = _free(form, token_id)
    return f"{start}\n{rules}\n"


def _content_or_call(functions: Sequence[Function], content: str) -> str:
    """Both begin with a brace, so that one schema must say both. Here a call comes alone."""
    whole = {"content": schema_of(content), **{f"call_{i}": _parameters(each) for i, each in enumerate(functions)}}
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": function.name}, "parameters": {"$ref": f"#/$defs/call_{number}"}},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for number, function in enumerate(functions)
    ]
    either = {
        "anyOf": [*calls, {"$ref": "#/$defs/content"}],
        "$defs": {name: _moved(schema, f"#/$defs/{name}") for name, schema in whole.items()},
    }
    return f"start: %json {json.dumps(schema_of(json.dumps(either)))}\n"


def _moved(schema: Any, root: str) -> Any:
    """The schema with its references counted from its new place."""
    if isinstance(schema, list):
        return [_moved(each, root) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: root + value[1:] if key == "$ref" and str(value).startswith("#") else _moved(value, root)
        for key, value in schema.items()
        if key != "x-guidance"
    }


def _parameters(function: Function) -> dict[str, Any]:
    return {"type": "object", **(function.parameters or {})}


def _free(form: CallFormat, token_id: TokenId) -> str:
    """Text in which calls may begin; of llama, whose calls have no mark before them, text or calls."""
    if form is CallFormat.LLAMA:
        return "start: TEXT | calls\nTEXT: " + r"/([^{](.|\n)*)?/"
    begin = _BEGIN[form]
    head = until("head", begin, token_id(begin))
    return f"start: TEXT | head rest\n{head}\nTEXT: " + rf"/(.|\n)*/ & ~/(.|\n)*{pattern(begin)}(.|\n)*/"


def _calls(functions: Sequence[Function], key: str) -> str:
    """`call`: one of the functions with its arguments."""
    rules = ["call: " + " | ".join(f"call_{number}" for number in range(len(functions)))]
    for number, function in enumerate(functions):
        head = f'{{"name": {json.dumps(function.name)}, "{key}": '
        schema = _parameters(function)
        rules.append(
            f"call_{number}: {json.dumps(head)} arguments_{number} {json.dumps('}')}\n"
            f"arguments_{number}: %json {json.dumps(schema_of(json.dumps(schema)))}"
        )
    return "\n".join(rules)


def _hermes(functions: Sequence[Function], parallel: bool, token_id: TokenId) -> str:
    begin, end = (mark(text, token_id(text)) for text in ("<tool_call>", "</tool_call>"))
    more = f' ("\\n" {begin} "\\n" call "\\n" {end})*' if parallel else ""
    return f'calls: {begin} rest\nrest: "\\n" call "\\n" {end}{more}\n' + _calls(functions, "arguments")


def _llama(functions: Sequence[Function], parallel: bool, token_id: TokenId) -> str:
    tag = token_id("<|python_tag|>")
    first = "" if tag is None else f"<[{tag}]>? "
    more = ' ("; " call)*' if parallel else ""
    return f"calls: {first}call{more}\n" + _calls(functions, "parameters")


def _mistral(functions: Sequence[Function], parallel: bool, token_id: TokenId) -> str:
    begin = mark("[TOOL_CALLS]", token_id("[TOOL_CALLS]"))
    more = ' (", " call)*' if parallel else ""
    return f'calls: {begin} rest\nrest: " "? "[" call{more} "]"\n' + _calls(functions, "arguments")


_CALLS: dict[CallFormat, Callable[[Sequence[Function], bool, TokenId], str]] = {
    CallFormat.HERMES: _hermes,
    CallFormat.LLAMA: _llama,
    CallFormat.MISTRAL: _mistral,
}

_BEGIN: dict[CallFormat, str] = {CallFormat.HERMES: "<tool_call>", CallFormat.MISTRAL: "[TOOL_CALLS]"}
"""The mark before calls."""
