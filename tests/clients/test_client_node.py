"""openai-node and the Vercel AI SDK."""

from __future__ import annotations

import json


def test_openai_node_gets_the_same_whole_and_streamed(node, live) -> None:
    got = node.run("openai.mjs", live)
    assert got["whole"] == got["streamed"]
    assert got["completion"] == got["completionStreamed"]
    assert got["usage"]["total_tokens"] == got["usage"]["prompt_tokens"] + got["usage"]["completion_tokens"]
    assert got["models"] == ["fake"]
    assert got["responseEnd"] in ("response.completed", "response.incomplete")
    error = got["error"]
    assert error.pop("id")
    assert error == {"status": 404, "code": "model_not_found", "param": "model", "type": "invalid_request_error"}


def test_openai_node_calls_tools(node, recital, said) -> None:
    got = node.run("openai.mjs", recital)
    assert got["whole"] == got["streamed"] == got["response"] == got["responseStreamed"] == said
    assert got["finish"] == "tool_calls"
    for (call,) in (got["calls"], got["callsStreamed"]):
        assert call["function"]["name"] == "weather"
        assert json.loads(call["function"]["arguments"]) == {"city": "Köln 😀"}


def test_the_vercel_ai_sdk_gets_the_same_whole_and_streamed(node, live) -> None:
    got = node.run("vercel.mjs", live)
    assert got["whole"] == got["streamed"]
    assert got["finish"] in ("stop", "length")


def test_the_vercel_ai_sdk_runs_tools(node, recital, said) -> None:
    got = node.run("vercel.mjs", recital)
    assert got["steps"] == [{"finish": "tool-calls", "inputs": [{"city": "Köln 😀"}]}, {"finish": "stop", "inputs": []}]
    assert got["streamedSteps"] == [[{"city": "Köln 😀"}], []]
    assert got["text"] == got["streamedText"] == said
