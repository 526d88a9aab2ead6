"""A constraint as a request states it, and its llguidance grammar. Pure.

Whatever the form, one grammar named `content` describes the answer. A model that thinks first is left to: then another
grammar stands above it, which lets the thought run to its end and begins `content` behind it.

White space in JSON is bounded. Between tokens JSON allows any amount, and small models, when all else is forbidden,
fill their whole answer with it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from shoal.errors import UsageError
from shoal_router.text.reasoning import BEGIN, END, begins_within

JSON_WHITESPACE: Final = r"[ \n\r\t]{0,32}"


class GrammarRefused(UsageError):
    """The request's schema, expression or grammar cannot be used; the message says why."""


class Form(StrEnum):
    """How a constraint's text is to be read. GRAMMAR: llguidance's Lark, or llama.cpp's GBNF."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"


class Thought(StrEnum):
    """What may stand before the constrained answer, by the prompt: nothing, a thought, or the rest of one."""

    NONE = "none"
    MAYBE = "maybe"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an answer must be. `param`: the request's parameter that says so, named in refusals.

    `think` and `end_think`: ids of the marks around a thought where they are special tokens, which have no text.
    """

    form: Form
    text: str
    param: str
    thought: Thought = Thought.NONE
    think: int | None = None
    end_think: int | None = None


def thought_of(prompt: str, *, thinks: bool) -> Thought:
    """Whether the model, if it `thinks` at all, is about to, or does already, by how its template ended the prompt."""
    if begins_within(prompt):
        return Thought.OPEN
    return Thought.MAYBE if thinks and not prompt.rstrip().endswith(END) else Thought.NONE


def grammar_of(constraint: Constraint) -> str:
    """llguidance's text, not compiled yet. Raises GrammarRefused for what is not even the form's syntax."""
    grammars = [_content(constraint)]
    if constraint.thought is not Thought.NONE:
        grammars.insert(0, {"name": "answer", "lark_grammar": _above(constraint)})
    grammar = json.dumps({"grammars": grammars}, ensure_ascii=False)
    try:
        grammar.encode()
    except UnicodeEncodeError:
        raise GrammarRefused("half of a surrogate pair is no character") from None
    return grammar


def mark(text: str, token_id: int | None) -> str:
    """A mark in Lark: that very token where it is a special one, else its text."""
    return json.dumps(text, ensure_ascii=False) if token_id is None else f"<[{token_id}]>"


def _content(constraint: Constraint) -> dict[str, Any]:
    match constraint.form:
        case Form.JSON_SCHEMA:
            return {"name": "content", "json_schema": schema_of(constraint.text)}
        case Form.REGEX:
            grammar = json.loads(LLMatcher.grammar_from_regex(constraint.text))["grammars"][0]
            return {"name": "content", "lark_grammar": grammar["lark_grammar"]}
        case Form.GRAMMAR:
            try:
                return {"name": "content", "lark_grammar": any_to_lark(constraint.text)}
            except Exception as error:  # its parser raises whatever it stumbles over
                raise GrammarRefused(f"neither Lark nor GBNF: {error}") from error


def schema_of(text: str) -> dict[str, Any]:
    """A JSON schema as llguidance takes it. Raises GrammarRefused when the text is none."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarRefused(f"not JSON: {error}") from error
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        raise GrammarRefused("a JSON schema is an object")
    # Options of ours, not the caller's: lenient ones would let through what the schema forbids.
    return {**schema, "x-guidance": {"whitespace_pattern": JSON_WHITESPACE}}


def until(rule: str, text: str, token_id: int | None) -> str:
    """A rule in Lark: anything up to the first mark, and the mark."""
    if token_id is not None:
        return rf"{rule}: /(.|\n)*/ <[{token_id}]>"
    return rf"{rule}[lazy]: /(.|\n)*{pattern(text)}/"


def pattern(text: str) -> str:
    """The text in a Lark regular expression."""
    return re.escape(text).replace("/", r"\/")


def _above(constraint: Constraint) -> str:
    begin = mark(BEGIN, constraint.think)
    thought = "thought" if constraint.thought is Thought.OPEN else f"({begin} thought)?"
    end = until("until", END, constraint.end_think)
    return rf"""start: {thought} @content
thought: until GAP
{end}
GAP: /[ \n]{{0,4}}/"""
