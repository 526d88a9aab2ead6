"""Tool calls of each family, cut at every point; what only looks like a call stays text."""

import json
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_router.text.call_format import CallFormat, call_format_of
from shoal_router.text.calls import CallReader

HERMES, LLAMA, MISTRAL = CallFormat.HERMES, CallFormat.LLAMA, CallFormat.MISTRAL
TRICKY = '{"city": "K\\"ö}{ln\\\\", "deep": {"list": [1, {"x": "</tool_call>"}], "none": null}}'


def read(form, pieces, *, one=False):
    """Text, calls as (name, arguments), and how many pieces were taken."""
    ids = count()
    reader = CallReader(form, {"f", "weather"}, lambda: f"id{next(ids)}", one=one)
    content, calls, taken = "", [], 0
    for piece in pieces:
        text, deltas = reader.push(piece)
        content += text
        taken += 1
        for delta in deltas:
            if delta.call_id is not None:
                assert delta.index == len(calls)
                assert delta.call_id == f"id{delta.index}"
                calls.append([delta.name, ""])
            calls[delta.index][1] += delta.arguments
        if reader.done:
            return content, calls, taken
    return content + reader.flush(), calls, taken


ANSWERS = [
    (HERMES, '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "", [["f", '{"a": 1}']]),
    (HERMES, f'Wait.\n<tool_call>{{"name":"f","arguments":{TRICKY}}}</tool_call>', "Wait.", [["f", TRICKY]]),
    (
        HERMES,
        '\n\n<tool_call>\n{"arguments": {"a": 1}, "name": "f"}\n</tool_call>\n'
        '<tool_call>\n{"name": "g"}\n</tool_call>\n',
        "",
        [["f", '{"a": 1}'], ["g", "{}"]],
    ),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [["f", '{"a": 1}']]),
    (HERMES, '<tool_call>{"name": "f", "arguments": null }</tool_call>Done.', "Done.", [["f", "{}"]]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1', "", [["f", '{"a": 1']]),
    (HERMES, "a < b, <tool_ and <tool_call", "a < b, <tool_ and <tool_call", []),
    (HERMES, "<tool_call> is a marker ", "<tool_call> is a marker ", []),
    (HERMES, '<tool_call>{"name": 5}', '<tool_call>{"name": 5}', []),
    (HERMES, "Just text. \n", "Just text. \n", []),
    (LLAMA, '{"name": "f", "parameters": {"a": 1}}', "", [["f", '{"a": 1}']]),
    (LLAMA, '<|python_tag|>{"type": "function", "name": "f", "parameters": {}}', "", [["f", "{}"]]),
    (
        LLAMA,
        '\n{"name": "f", "parameters": {"a": 1}}; {"name": "weather", "parameters": {}}',
        "",
        [["f", '{"a": 1}'], ["weather", "{}"]],
    ),
    (LLAMA, '{"name": "Bob", "parameters": {"age": 3}}', '{"name": "Bob", "parameters": {"age": 3}}', []),
    (LLAMA, ' {"age": 3, "name": "f"} text', ' {"age": 3, "name": "f"} text', []),
    (LLAMA, ' Hello {"name": "f"}', ' Hello {"name": "f"}', []),
    (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"a": [1]}}]', "", [["f", '{"a": [1]}']]),
    (
        MISTRAL,
        'Ok [TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "weather", "arguments": {"a": 1}}]',
        "Ok",
        [["f", "{}"], ["weather", '{"a": 1}']],
    ),
    (MISTRAL, '[TOOL_CALLS]weather[ARGS]{"a": {"b": "}"}}', "", [["weather", '{"a": {"b": "}"}}']]),
    (MISTRAL, '[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]f[ARGS]{}', "", [["f", '{"a": 1}'], ["f", "{}"]]),
    (MISTRAL, "[TOOL_CALLS] ! not so", "[TOOL_CALLS] ! not so", []),
    (MISTRAL, "a [list] of [TOOL", "a [list] of [TOOL", []),
]


@pytest.mark.parametrize(("form", "text", "content", "calls"), ANSWERS)
def test_calls_are_read_wherever_the_text_is_cut(form, text, content, calls) -> None:
    assert read(form, [text])[:2] == (content, calls)
    assert read(form, list(text))[:2] == (content, calls)
    for cut in range(1, len(text)):
        assert read(form, [text[:cut], text[cut:]])[:2] == (content, calls), cut


@given(
    form=st.sampled_from(CallFormat),
    pieces=st.lists(
        st.sampled_from(
            ['{"name": ', '"f"', ', "arguments": ', "{}", "}", "<tool_call>", "</tool_call>", "[TOOL_CALLS]"]
        )
        | st.sampled_from(["[ARGS]", "<|python_tag|>", " ", "\n", "x", '"', "\\", "[", "]", ","]),
        max_size=14,
    ),
)
@settings(max_examples=300, deadline=None)
def test_whatever_a_model_writes_the_cuts_do_not_matter(form, pieces) -> None:
    text = "".join(pieces)
    assert read(form, pieces)[:2] == read(form, list(text))[:2] == read(form, [text])[:2]


def test_arguments_are_handed_out_as_they_come() -> None:
    reader = CallReader(HERMES, (), lambda: "id", one=False)
    _, first = reader.push('<tool_call>{"name": "f", "arguments": {"a"')
    _, second = reader.push(": 1")
    assert [(delta.name, delta.arguments) for delta in (*first, *second)] == [("f", '{"a"'), (None, ": 1")]


def test_with_one_call_the_answer_is_done_behind_it() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    content, calls, taken = read(HERMES, list(call * 2), one=True)
    assert (content, calls) == ("", [["f", "{}"]])
    assert taken == call.index("</")


def test_arguments_of_valid_json_stay_valid() -> None:
    content, calls, _ = read(LLAMA, [json.dumps({"name": "f", "parameters": {"x": "\u2028 😀 \\"}})])
    assert not content
    assert json.loads(calls[0][1]) == {"x": "\u2028 😀 \\"}


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{% if tools %}<tool_call>{% endif %}", HERMES),
        ("{% if tools %}Environment: ipython{% endif %}", LLAMA),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", MISTRAL),
        ("{% for message in messages %}{% endfor %}", None),
        ("{% if tools %}in words of its own{% endif %}", None),
    ],
)
def test_the_family_is_told_from_the_template(template, form) -> None:
    assert call_format_of(template) is form
