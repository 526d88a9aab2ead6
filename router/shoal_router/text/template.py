"""The chat template: messages -> the prompt's text, as Hugging Face renders it.

Facts from transformers' chat template documentation: Jinja in an immutable sandbox with trim_blocks and lstrip_blocks,
`break`/`continue`, a `tojson` that does not escape HTML or non-ASCII characters, the functions `raise_exception` and
`strftime_now`, and the block `{% generation %}` that only marks a region for training. Variables: messages, tools,
documents, add_generation_prompt, bos_token, eos_token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shoal.errors import ManifestError, UsageError
from shoal_router.text.call_format import call_format_of
from shoal_router.text.reasoning import thinks

Message = Mapping[str, Any]

RESERVED_VARIABLES = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token", "continue_final_message"}
)
"""What a request cannot set: it is given by the request's own fields, or by the model."""

# As a string of the template's own; the word may well stand in its prose.
_DEVELOPER_ROLE = re.compile(r"""(['"])developer\1""")


class TemplateRefused(UsageError):
    """The model's chat template cannot express these messages; the message is the template's own where it has one."""


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` renders its content."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares a plain set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class ChatTemplate:
    """A compiled template.

    Templates differ in points that API clients cannot know, so they are found out once, when loading: whether
    `content` may be none (an assistant that only called tools), whether the role `developer` exists, how the model
    writes tool calls (`call_format`), and whether it may write its reasoning (`thinks`).
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda layout: now().strftime(layout)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ManifestError(f"chat_template.jinja, line {error.lineno}: {error.message}") from error
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self.call_format = call_format_of(source)
        self.thinks = thinks(source)
        self._knows_developer = _DEVELOPER_ROLE.search(source) is not None
        self._content_may_be_none = self._renders_tool_calls_without_content()

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt, up to where the assistant's answer begins. Raises TemplateRefused."""
        return self._render([self._adapted(message) for message in messages], tools, variables)

    def _adapted(self, message: Message) -> dict[str, Any]:
        adapted = dict(message)
        if adapted["role"] == "developer" and not self._knows_developer:
            adapted["role"] = "system"
        if adapted.get("content") is None:
            only_calls = adapted.get("tool_calls") and self._content_may_be_none
            adapted["content"] = None if only_calls else ""
        return adapted

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        own = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True, **self._tokens}
        try:
            return self._template.render({**(variables or {}), **own})
        except jinja2.TemplateError as error:
            raise TemplateRefused(f"the model's chat template refuses these messages: {error}") from error
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            # Python's own errors within the template: it was not written for such messages.
            raise TemplateRefused(f"the model's chat template cannot express these messages: {error}") from error

    def _renders_tool_calls_without_content(self) -> bool:
        call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {}}}

        def rendered(content: str | None) -> str:
            answer = {"role": "assistant", "content": content, "tool_calls": [call]}
            return self._render([{"role": "user", "content": "?"}, answer], None)

        try:
            without = rendered(None)
        except TemplateRefused:
            return False
        try:
            empty = rendered("")
        except TemplateRefused:
            return True
        # A template that prints the content without looking at it would tell the model "None".
        return without.count("None") <= empty.count("None")
