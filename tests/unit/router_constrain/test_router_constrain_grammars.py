"""From what a request states to a grammar that allows just that, over a vocabulary of single bytes."""

from __future__ import annotations

import json

import pytest
from llguidance import LLTokenizer

from shoal.grammar import matcher_of
from shoal.wire.messages import LARGEST_GRAMMAR
from shoal_router.constrain.constraint import Constraint, Form, GrammarRefused, Thought, thought_of
from shoal_router.constrain.tools import Function, tool_grammar
from shoal_router.constrain.worker import compiled, constraint_of
from shoal_router.text.call_format import CallFormat
from shoal_router.text.fake import EOS_ID, fake_tokenizer

TOKENIZER = LLTokenizer(fake_tokenizer().to_str(), n_vocab=259, eos_token=[EOS_ID])
SCHEMA = (
    '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}'
)


def allows(grammar: str, text: str) -> bool:
    matcher = matcher_of(TOKENIZER, grammar)
    assert not matcher.is_error(), matcher.get_error()
    ids = TOKENIZER.tokenize_str(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def grammar(form: Form, text: str, thought: Thought = Thought.NONE) -> str:
    return compiled(TOKENIZER, Constraint(form, text, "grammar", thought))


@pytest.mark.parametrize(
    ("form", "text", "good", "bad"),
    [
        (Form.JSON_SCHEMA, SCHEMA, '{"a": 1}', '{"b": 1}'),
        (Form.JSON_SCHEMA, SCHEMA, '{\n    "a": 1\n}', '{"a": 1} '),
        (Form.JSON_SCHEMA, SCHEMA, '{"a":1}', '{"a":' + " " * 40 + "1}"),
        (Form.JSON_SCHEMA, "{}", '[1, "x", null]', "x"),
        (Form.JSON_SCHEMA, "true", "1", "x"),
        (Form.REGEX, "[a-z]+(/x)?", "abc/x", "abc/y"),
        (Form.GRAMMAR, 'start: "a" | B\nB: /x+/', "xxx", "b"),
        (Form.GRAMMAR, 'root ::= "a" | [0-9]+', "123", "b"),
    ],
)
def test_each_form_allows_what_it_says(form: Form, text: str, good: str, bad: str) -> None:
    assert allows(grammar(form, text), good)
    assert not allows(grammar(form, text), bad)


@pytest.mark.parametrize(
    ("form", "text", "reason"),
    [
        (Form.REGEX, "(a", "unclosed group"),
        (Form.REGEX, "(?<=a)b", "look-around"),
        (Form.GRAMMAR, "start: nowhere", "nowhere"),
        (Form.GRAMMAR, "x", "neither Lark nor GBNF"),
        (Form.JSON_SCHEMA, "{", "not JSON"),
        (Form.JSON_SCHEMA, "[]", "is an object"),
        (Form.JSON_SCHEMA, '{"const": "\\ud800"}', "surrogate"),
        (Form.GRAMMAR, 'start: "\ud800"', "surrogate"),
        (Form.JSON_SCHEMA, '{"type": "foo"}', "foo"),
        (Form.JSON_SCHEMA, '{"uniqueItems": true}', "uniqueItems"),
        (Form.JSON_SCHEMA, '{"$ref": "http://example.com/x"}', "example.com"),
        (Form.JSON_SCHEMA, json.dumps({"enum": ["x" * LARGEST_GRAMMAR]}), "too large"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(form: Form, text: str, reason: str) -> None:
    with pytest.raises(GrammarRefused, match=reason) as refused:
        grammar(form, text)
    assert "\n" not in str(refused.value)


def test_a_callers_options_for_the_compiler_have_no_effect() -> None:
    with pytest.raises(GrammarRefused, match="uniqueItems"):
        grammar(Form.JSON_SCHEMA, '{"uniqueItems": true, "x-guidance": {"lenient": true}}')


@pytest.mark.parametrize("form", [Form.JSON_SCHEMA, Form.REGEX])
def test_a_thought_may_or_must_end_before_the_answer(form: Form) -> None:
    content = '{"a": 1}' if form is Form.JSON_SCHEMA else "abc"
    text = SCHEMA if form is Form.JSON_SCHEMA else "[a-z]+"
    maybe, opened = grammar(form, text, Thought.MAYBE), grammar(form, text, Thought.OPEN)
    assert allows(maybe, content)
    assert allows(maybe, f"<think>\nhm < 3 </thin\n</think>\n\n{content}")
    assert not allows(maybe, f"hm</think>{content}")
    assert allows(opened, f"hm {{}}\n</think>\n{content}")
    assert not allows(opened, content)
    assert not allows(opened, f"a</think>b</think>{content}")


def test_the_prompt_says_whether_the_model_thinks() -> None:
    assert thought_of("<|im_start|>assistant\n<think>\n", thinks=True) is Thought.OPEN
    assert thought_of("assistant\n<think>\n\n</think>\n\n", thinks=True) is Thought.NONE
    assert thought_of("assistant\n", thinks=True) is Thought.MAYBE
    assert thought_of("assistant\n", thinks=False) is Thought.NONE


def test_a_constraint_reaches_the_worker_as_it_is() -> None:
    stated = Constraint(Form.REGEX, "ü", "regex", Thought.OPEN, 3, None)
    line = json.dumps(
        {"form": "regex", "text": "ü", "param": "regex", "thought": "open", "think": 3, "end_think": None}
    )
    assert constraint_of(line) == stated


GET = Function(
    "get",
    {
        "type": "object",
        "properties": {"p": {"$ref": "#/$defs/P"}},
        "required": ["p"],
        "$defs": {"P": {"type": "string"}},
    },
    strict=True,
)
NOW = Function("now")
CALLS = {
    CallFormat.HERMES: '<tool_call>\n{"name": "get", "arguments": {"p": "x"}}\n</tool_call>',
    CallFormat.LLAMA: '{"name": "get", "parameters": {"p": "x"}}',
    CallFormat.MISTRAL: '[TOOL_CALLS] [{"name": "get", "arguments": {"p": "x"}}]',
}
TWO = {
    CallFormat.HERMES: CALLS[CallFormat.HERMES] + '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    CallFormat.LLAMA: CALLS[CallFormat.LLAMA] + '; {"name": "now", "parameters": {}}',
    CallFormat.MISTRAL: CALLS[CallFormat.MISTRAL][:-1] + ', {"name": "now", "arguments": {}}]',
}


def tools(form: CallFormat, *functions: Function, **how: object) -> str | None:
    how = {"required": True, "parallel": True, "token_id": lambda name: None} | how
    return tool_grammar(form, functions, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", CallFormat)
def test_required_calls_are_calls_of_these_functions_and_nothing_else(form: CallFormat) -> None:
    both = tools(form, GET, NOW)
    assert both is not None
    assert allows(both, CALLS[form])
    assert allows(both, TWO[form])
    assert not allows(both, "Hello")
    assert not allows(both, CALLS[form].replace('"p"', '"q"'))
    assert not allows(both, CALLS[form].replace("get", "put"))
    one = tools(form, GET, parallel=False)
    assert one is not None
    assert allows(one, CALLS[form])
    assert not allows(one, TWO[form])


@pytest.mark.parametrize("form", CallFormat)
def test_strict_calls_are_valid_when_they_come(form: CallFormat) -> None:
    free = tools(form, GET, NOW, required=False)
    assert free is not None
    assert allows(free, "Hello there")
    assert allows(free, CALLS[form])
    assert not allows(free, CALLS[form].replace('"p"', '"q"'))
    if form is not CallFormat.LLAMA:
        assert allows(free, "Let me look [<tool. " + CALLS[form])
        assert not allows(free, "Let me look. " + CALLS[form].replace('"p"', '"q"'))
    assert tools(form, NOW, required=False) is None


@pytest.mark.parametrize("form", CallFormat)
def test_with_a_response_format_an_answer_is_content_or_calls(form: CallFormat) -> None:
    either = tools(form, NOW, GET, required=False, content=SCHEMA)
    assert either is not None
    assert allows(either, '{"a": 1}')
    assert allows(either, CALLS[form])
    assert not allows(either, "Hello")


def test_special_tokens_are_meant_as_tokens() -> None:
    special = tools(CallFormat.MISTRAL, NOW, token_id=lambda name: 1)
    assert special is not None
    ids = [1, *TOKENIZER.tokenize_str('[{"name": "now", "arguments": {}}]')]
    matcher = matcher_of(TOKENIZER, special)
    assert matcher.try_consume_tokens(ids) == len(ids)
    assert matcher.is_accepting()
