"""What a request wants its answer to be, as the grammar that goes to the stages: checked before anything else is sent.

response_format, tools, grammar, regex ──> Constraint ──> GrammarCheck ──> SamplingParams.grammar, or 400
"""

from __future__ import annotations

import json

from shoal_router.api.errors import ApiError, invalid
from shoal_router.api.requests import ChatRequest, CompletionRequest
from shoal_router.constrain.check import GrammarCheck
from shoal_router.constrain.constraint import Constraint, Form, GrammarRefused, Thought, thought_of
from shoal_router.constrain.tools import Function, tool_grammar
from shoal_router.text.model import TextModel
from shoal_router.text.reasoning import BEGIN, END


def constraint_of(body: ChatRequest | CompletionRequest, text: TextModel, prompt: str) -> Constraint | None:
    """The constraint that the request states; None when every answer will do. `prompt`: the rendered chat, or ""."""
    stated = _tools(body, text) if isinstance(body, ChatRequest) and body.offered_tools else _stated(body)
    if stated is None:
        return None
    thinks = isinstance(body, ChatRequest) and text.template is not None and text.template.thinks
    thought = thought_of(prompt, thinks=thinks)
    if thought is Thought.NONE:
        return Constraint(*stated)
    return Constraint(*stated, thought, special_id(text, BEGIN), special_id(text, END))


def special_id(text: TextModel, name: str) -> int | None:
    """The id of a special token; None where the vocabulary has the name as text, or not at all."""
    token = text.tokenizer.token_to_id(name)
    return None if token is None or text.token_bytes.shown(token) else token


async def checked(constraint: Constraint | None, check: GrammarCheck | None) -> str:
    """The constraint's grammar, "" without one. Raises ApiError."""
    if constraint is None:
        return ""
    if check is None:
        param = constraint.param
        message = f"The parameter '{param}' is not supported by this server: it has no grammars."
        raise invalid(message, param=param, code="unsupported_parameter")
    try:
        return await check.grammar(constraint)
    except GrammarRefused as error:
        raise refused(constraint.param, error) from error


def refused(param: str, error: GrammarRefused) -> ApiError:
    """400 in OpenAI's words for a schema, in like words for the rest."""
    what = {"grammar": "grammar", "regex": "regular expression"}.get(param, "schema")
    return invalid(f"Invalid {what} for '{param}': {error}.", param=param)


def _tools(body: ChatRequest, text: TextModel) -> tuple[Form, str, str] | None:
    """Calls that must come, calls that must be right, or calls beside an answer that has a format."""
    if text.call_format is None:
        return None  # refused before
    choice = body.tool_choice
    name = None if choice is None else choice.name
    functions = [
        Function(tool.function.name, tool.function.parameters, strict=bool(tool.function.strict))
        for tool in body.offered_tools
        if name is None or tool.function.name == name
    ]
    content = _stated(body)
    try:
        grammar = tool_grammar(
            text.call_format,
            functions,
            required=choice is not None and choice.mode == "required",
            parallel=body.parallel_tool_calls is not False and name is None,
            content=None if content is None else content[1],
            token_id=lambda mark: special_id(text, mark),
        )
    except (GrammarRefused, RecursionError) as error:
        raise refused("tools", GrammarRefused(str(error))) from error
    return None if grammar is None else (Form.GRAMMAR, grammar, "tools")


def _stated(body: ChatRequest | CompletionRequest) -> tuple[Form, str, str] | None:
    if body.grammar is not None:
        return Form.GRAMMAR, body.grammar, "grammar"
    if body.regex is not None:
        return Form.REGEX, body.regex, "regex"
    wanted = body.response_format if isinstance(body, ChatRequest) else None
    if wanted is None or wanted.type == "text":
        return None
    if wanted.json_schema is None:
        return Form.JSON_SCHEMA, '{"type": "object"}', "response_format"
    param = "response_format.json_schema.schema"
    try:
        return Form.JSON_SCHEMA, json.dumps(wanted.json_schema.json_schema or {}), param
    except RecursionError:
        raise refused(param, GrammarRefused("too deep")) from None
