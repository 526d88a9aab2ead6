"""The API with SmolLM2's own tokenizer and template, the step loop, and real gRPC stages of the fake engine.

The fake engine draws from all 49152 ids at random, so its answers are full of cut characters: what a real model does
rarely happens here all the time.
"""

from __future__ import annotations

import random
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from shoal.manifest import MANIFEST_FILE
from shoal.resource import load_sharded_model
from shoal_cli.cache import checkpoints_dir
from shoal_router.api.app import create_app
from shoal_router.constrain.check import FakeCheck
from shoal_router.pipeline.fake import planned_at
from shoal_router.pipeline.opener import RingOpener
from shoal_router.pipeline.plan_source import FixedPlan
from shoal_router.settings import ApiSettings
from shoal_router.step_loop import StepLoop, StepLoopSettings
from shoal_router.text.model import TextModel, load_text_model
from shoal_stage.compile import resolve_source
from shoal_stage.compile.readers import open_checkpoint
from shoal_stage.compile.tokenizer import build_tokenizer, write_tokenizer
from shoal_stage.engine.fake import fake_manifest
from shoal_stage.server.fake import fake_pipeline
from shoaltest.waiting import until_elsewhere

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2.yaml"
VOCAB = 49152
QUESTION = [{"role": "user", "content": "Who are you? 😀 ไทย 世界"}]
CHAT = {"model": "smollm2", "messages": QUESTION, "max_tokens": 40, "seed": 7}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    """SmolLM2's text side in a model directory without blocks."""
    source = load_sharded_model(EXAMPLE).spec.model.source
    assert source is not None
    checkpoint = open_checkpoint(resolve_source(source.uri, checkpoints_dir(), source.sha256).path)
    tokenizer = build_tokenizer(checkpoint.tokenizer, VOCAB)
    directory = tmp_path_factory.mktemp("smollm2")
    write_tokenizer(tokenizer, directory)
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_ids": tokenizer.eos_token_ids}
    manifest = fake_manifest(vocab_size=VOCAB, name="smollm2").model_copy(update=ids)
    (directory / MANIFEST_FILE).write_bytes(manifest.canonical_json())
    return load_text_model(directory)


@asynccontextmanager
async def serving(text: TextModel, stages: int = 2, sequences: int = 16, **settings):
    """An HTTP client of the API over a step loop over stages; checks at the end that every stage is empty."""
    async with AsyncExitStack() as stack:
        handles = await stack.enter_async_context(fake_pipeline(stages, vocab_size=VOCAB, sequences=sequences))
        plan = planned_at(
            [handle.address for handle in handles], [handle.blocks for handle in handles], handles[0].manifest.digest
        )
        loop = StepLoop(RingOpener(FixedPlan(plan)), StepLoopSettings(**settings))
        await loop.start()
        stack.push_async_callback(loop.stop)
        await loop.wait_ready(20)
        app = create_app(loop, text, ApiSettings(served_names=("smollm2",)), grammars=FakeCheck())
        transport = httpx.ASGITransport(app)
        yield await stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://router", timeout=60)
        )
        await until_elsewhere(lambda: not any(handle.engine.live for handle in handles))


async def chat(client, **body):
    response = await client.post("/v1/chat/completions", json=CHAT | body)
    assert response.status_code == 200, response.text
    return response.json()


async def chunks(client, **body):
    """The data of a stream's events, without `[DONE]`."""
    response = await client.post("/v1/chat/completions", json=CHAT | body | {"stream": True})
    lines = [line for line in response.text.split("\n") if line.startswith("data: ")]
    assert lines.pop() == "data: [DONE]"
    return [httpx.Response(200, content=line.removeprefix("data: ")).json() for line in lines]


def test_case_88_smollm2s_own_template_gives_its_prompt(text: TextModel) -> None:
    prompt = text.render_chat([{"role": "user", "content": "Hi"}])
    assert prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = text.encode(prompt, add_special_tokens=False)
    assert ids[:2] == (1, 9690)
    assert ids.count(2) == 2
    assert text.stop_token_ids == {0, 2}


def test_case_67_any_ids_of_smollm2_decode_as_the_library_decodes_them(text: TextModel) -> None:
    numbers = random.Random(67)
    for _ in range(500):
        ids = [numbers.randrange(VOCAB) for _ in range(numbers.randrange(1, 40))]
        assert text.decode(ids) == text.tokenizer.decode(ids, skip_special_tokens=True)


async def test_case_67_case_89_stream_and_whole_agree_in_text_and_usage(text: TextModel) -> None:
    prompt = len(text.encode(text.render_chat(QUESTION), add_special_tokens=False))
    async with serving(text) as client:
        whole = await chat(client)
        stream = await chunks(client, stream_options={"include_usage": True})
    said = "".join(c["choices"][0]["delta"].get("content", "") for c in stream if c["choices"])
    assert said == whole["choices"][0]["message"]["content"]
    assert whole["usage"]["prompt_tokens"] == stream[-1]["usage"]["prompt_tokens"] == prompt
    assert whole["usage"]["completion_tokens"] == stream[-1]["usage"]["completion_tokens"]


async def test_a_seed_repeats_the_answer_whatever_n_and_the_split_are(text: TextModel) -> None:
    async with serving(text, stages=1) as client:
        one = (await chat(client))["choices"][0]["message"]["content"]
    async with serving(text, stages=3) as client:
        choices = (await chat(client, n=3))["choices"]
        other = (await chat(client, seed=8))["choices"][0]["message"]["content"]
    answers = [choice["message"]["content"] for choice in choices]
    assert answers[0] == one
    assert len({*answers, other}) == 4


async def test_logit_bias_and_the_stop_id_reach_the_last_stage(text: TextModel) -> None:
    (hello,) = text.encode("hello", add_special_tokens=False)
    async with serving(text) as client:
        forced = await chat(client, temperature=0, logit_bias={str(hello): 100}, max_tokens=3)
        assert forced["choices"][0]["message"]["content"] == "hellohellohello"
        assert forced["choices"][0]["finish_reason"] == "length"
        ended = await chat(client, temperature=0, logit_bias={"2": 100})
        assert ended["choices"][0]["message"]["content"] == ""
        assert ended["choices"][0]["finish_reason"] == "stop"
        assert ended["usage"]["completion_tokens"] == 1


async def test_logprobs_come_from_the_last_stage_best_first(text: TextModel) -> None:
    async with serving(text) as client:
        answer = await chat(client, temperature=0, logprobs=True, top_logprobs=3, max_tokens=10)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == 10
    for entry in entries:
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)
        assert len(values) == 3
        assert entry["logprob"] == pytest.approx(values[0]), "greedy takes the best"
    spelled = bytes(byte for entry in entries for byte in entry["bytes"])
    assert spelled.decode(errors="ignore").startswith(answer["choices"][0]["message"]["content"][:5])


async def test_case_68_a_stop_string_from_the_middle_of_an_answer_cuts_it_there(text: TextModel) -> None:
    async with serving(text) as client:
        whole = (await chat(client))["choices"][0]["message"]["content"]
        stop = whole[len(whole) // 2 : len(whole) // 2 + 4]
        cut = whole[: whole.index(stop)]
        assert (await chat(client, stop=stop))["choices"][0]["message"]["content"] == cut
        stream = await chunks(client, stop=[stop, "\x00never"])
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in stream) == cut
    assert stream[-1]["choices"][0]["finish_reason"] == "stop"


async def test_a_full_queue_is_a_429_with_retry_after(text: TextModel) -> None:
    async with serving(text, sequences=2, max_waiting=1) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"n": 8})
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["code"] == "rate_limit_exceeded"


async def test_case_51_case_82_the_context_of_the_stages_is_the_limit(text: TextModel) -> None:
    async with serving(text) as client:
        body = {"model": "smollm2", "prompt": [5] * 500, "max_tokens": 12}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        response = await client.post("/v1/completions", json=body | {"max_tokens": 13})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert "maximum context length is 512 tokens" in response.json()["error"]["message"]
