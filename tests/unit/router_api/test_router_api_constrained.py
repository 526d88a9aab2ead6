"""response_format, grammar and regex at the API: what reaches the stages, and what is refused before anything does."""

import json
from typing import Any

import pytest

from shoal_router.constrain.constraint import Form

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
STRICT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}


@pytest.mark.parametrize(
    ("body", "form", "text", "param"),
    [
        ({"response_format": {"type": "json_object"}}, Form.JSON_SCHEMA, '{"type": "object"}', "response_format"),
        ({"response_format": STRICT}, Form.JSON_SCHEMA, json.dumps(SCHEMA), "response_format.json_schema.schema"),
        ({"grammar": 'start: "a"'}, Form.GRAMMAR, 'start: "a"', "grammar"),
        ({"regex": "[a-z]+"}, Form.REGEX, "[a-z]+", "regex"),
    ],
)
async def test_case_80_what_is_asked_for_goes_to_every_choice(bench, body, form, text, param) -> None:
    response = await bench.chat(n=2, **body)
    assert response.status_code == 200, response.text
    (asked,) = bench.grammars.asked
    assert (asked.form, asked.text, asked.param) == (form, text, param)
    first, second = (request.params.grammar for request in bench.generator.requests)
    assert first == second != ""


async def test_text_asks_for_nothing(bench) -> None:
    await bench.chat(response_format={"type": "text"})
    await bench.chat()
    assert not bench.grammars.asked
    assert {request.params.grammar for request in bench.generator.requests} == {""}


async def test_completions_take_a_grammar_too(bench) -> None:
    await bench.complete(regex="[0-9]{3}")
    assert "[0-9]{3}" in bench.generator.requests[0].params.grammar


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "invalid_value"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
            "response_format.json_schema.name",
            "invalid_value",
        ),
        (
            {"response_format": {"type": "json_object", "json_schema": {"name": "x"}}},
            "response_format.json_schema",
            "invalid_value",
        ),
        ({"response_format": STRICT, "regex": "a"}, "regex", "invalid_value"),
        ({"grammar": 'start: "a"', "regex": "a"}, "regex", "invalid_value"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos", "invalid_value"),
        ({"response_format": STRICT, "ignore_eos": True}, "ignore_eos", "invalid_value"),
        ({"response_format": {"type": "json_object", "x": 1}}, "response_format.x", "unknown_parameter"),
    ],
)
async def test_what_contradicts_itself_is_refused_by_name(bench, body: dict[str, Any], param: str, code: str) -> None:
    response = await bench.chat(**body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert not bench.generator.requests


async def test_case_80_a_schema_that_cannot_be_used_is_refused_with_the_reason(bench) -> None:
    bench.grammars.refused[json.dumps(SCHEMA)] = 'Unimplemented keys: ["uniqueItems"]'
    response = await bench.chat(response_format=STRICT)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "response_format.json_schema.schema"
    assert error["message"] == (
        "Invalid schema for 'response_format.json_schema.schema': Unimplemented keys: [\"uniqueItems\"]."
    )
    assert not bench.generator.requests
