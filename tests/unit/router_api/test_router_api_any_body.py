"""Whatever JSON a client sends: the answer is 200 or a 4xx in OpenAI's form, never a crash."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal_router.api.requests import ChatRequest, CompletionRequest

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
part = st.fixed_dictionaries({"type": st.sampled_from(["text", "refusal", "image_url"])}, optional={"text": anything})
call = st.fixed_dictionaries(
    {"id": st.just("c"), "function": st.fixed_dictionaries({"name": st.just("f"), "arguments": st.text(max_size=5)})}
)
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"])},
    optional={"content": anything | st.lists(part, max_size=2), "tool_calls": st.lists(call), "name": anything},
)


def body(required: dict[str, st.SearchStrategy], names: list[str]) -> st.SearchStrategy:
    """Plausible bodies with one or two fields of any shape."""
    odd = st.dictionaries(st.sampled_from(names) | st.text(max_size=6), anything, max_size=2)
    return st.builds(lambda plausible, odd: {**plausible, **odd}, st.fixed_dictionaries(required), odd)


chat = body(
    {"model": st.just("fake"), "messages": st.lists(message, max_size=3), "max_tokens": st.integers(-1, 5)},
    sorted(ChatRequest.model_fields),
)
completion = body(
    {"model": st.just("fake"), "prompt": anything | st.text(max_size=5), "max_tokens": st.integers(-1, 5)},
    sorted(CompletionRequest.model_fields),
)


@given(case=st.tuples(st.just("/v1/chat/completions"), chat) | st.tuples(st.just("/v1/completions"), completion))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_no_body_makes_the_router_fail(bench, case) -> None:
    path, data = case
    response = await bench.client.post(path, content=json.dumps(data), headers={"content-type": "application/json"})
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
