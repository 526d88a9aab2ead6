"""LangChain's ChatOpenAI: chat, streams, tools, structured output."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


class Animal(BaseModel):
    """An animal."""

    name: Annotated[str, Field(max_length=6)]
    kind: Literal["cat", "bird"]


def model(url: str, **options) -> ChatOpenAI:
    return ChatOpenAI(model="fake", base_url=f"{url}/v1", api_key="none", max_retries=0, **options)


def test_chat_whole_and_streamed_over_two_stages(live) -> None:
    chat = model(live, max_tokens=40, seed=7)
    whole = chat.invoke("hi")
    assert whole.usage_metadata["output_tokens"] <= 40
    assert "".join(chunk.content for chunk in chat.stream("hi")) == whole.content


def test_tools_are_called_and_answered(recital, said) -> None:
    chat = model(recital).bind_tools([weather])
    answer = chat.invoke("hi")
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Köln 😀"})
    streamed = None
    for chunk in chat.stream("hi"):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed.tool_calls[0]["args"] == call["args"]
    result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
    assert chat.invoke([HumanMessage("hi"), answer, result]).content == said


def test_the_responses_api(recital, said) -> None:
    chat = model(recital, use_responses_api=True)
    assert chat.invoke("hi").text == said
    assert "".join(chunk.text for chunk in chat.stream("hi")) == said


async def test_without_a_thread(recital, said) -> None:
    chat = model(recital)
    assert (await chat.ainvoke("hi")).content == said
    assert "".join([chunk.content async for chunk in chat.astream("hi")]) == said


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_case_81_structured_output_over_two_stages(live, method: str) -> None:
    chat = model(live, max_tokens=400, seed=7).with_structured_output(Animal, method=method)
    assert isinstance(chat.invoke("hi"), Animal)


@pytest.mark.parametrize("choice", ["any", "Animal"])
def test_calls_are_forced_over_two_stages(live, choice: str) -> None:
    chat = model(live, max_tokens=400, seed=7).bind_tools([Animal], tool_choice=choice, parallel_tool_calls=False)
    (call,) = chat.invoke("hi").tool_calls
    assert Animal.model_validate(call["args"])
