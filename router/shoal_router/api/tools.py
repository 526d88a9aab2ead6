"""The tools of a chat request: what they are called, what they take, and whether one must be called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from shoal_router.api.fields import json_kind, unsupported, wrong

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class Function(BaseModel):
    """A function of the client's; `parameters` is the JSON schema of its arguments."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """One tool. OpenAI's custom tools (free text in a grammar of their own) are not served."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """The tool as chat templates read it: some print description and parameters without looking."""
        function = {
            "name": self.function.name,
            "description": self.function.description or "",
            "parameters": self.function.parameters or {"type": "object", "properties": {}},
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether tools are called. `name`: the one that must be, with mode `required`."""

    mode: Literal["none", "auto", "required"]
    name: str | None = None


def _tool_choice(value: Any) -> ToolChoice | None:
    match value:
        case None:
            return None
        case "none" | "auto" | "required":
            return ToolChoice(value)
        case {"type": "function", "function": {"name": str(name), **more}, **rest} if not more and not rest:
            return ToolChoice("required", name)
        case {"type": "allowed_tools" | "custom" as kind}:
            raise unsupported(f"The parameter 'tool_choice' of type '{kind}' is not supported by this server.")
        case dict() | str():
            raise wrong('expected "none", "auto", "required" or {"type": "function", "function": {"name": "…"}}')
        case _:
            raise wrong(f"expected a string or an object, got {json_kind(value)}")


class _NamedFunction(BaseModel):
    name: str


class _NamedChoice(BaseModel):
    type: Literal["function"]
    function: _NamedFunction


ToolChoiceField = PlainValidator(
    _tool_choice, json_schema_input_type=Literal["none", "auto", "required"] | _NamedChoice | None
)


def check_tools(tools: list[Tool], choice: ToolChoice | None, parallel: bool | None) -> None:
    """Raises what pydantic turns into a refusal when the three parameters do not agree."""
    names = [tool.function.name for tool in tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise wrong(f"Two tools are named '{twice}'.", param="tools")
    if choice is not None and choice.mode == "required" and not tools:
        raise wrong("'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice")
    if choice is not None and choice.name is not None and choice.name not in names:
        raise wrong(f"There is no tool named '{choice.name[:64]}' in 'tools'.", param="tool_choice")
    if parallel is not None and not tools:
        raise wrong("'parallel_tool_calls' is only allowed when 'tools' are specified.", param="parallel_tool_calls")
