"""Two routers for other people's clients: one over two real stages, one that recites.

`live`: the router as a process over two gRPC stages of the fake engine, which draws at random: what is compared is the
stream with the whole answer, and an answer with the form that was asked for. `recital`: the same API over
FakeGenerator, which says what a test needs: text, or a tool call when the conversation offers tools and has no result
yet. Both run beside the tests, so that any client may block.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLTokenizer

from shoal.manifest import MANIFEST_FILE
from shoal.plan.document import Plan
from shoal_router.api.app import create_app
from shoal_router.api.fake import FakeGenerator
from shoal_router.constrain.check import FakeCheck
from shoal_router.pipeline.fake import planned_at
from shoal_router.settings import ApiSettings
from shoal_router.text.fake import CHATML_TOOLS, EOS_ID, fake_text_model, fake_tokenizer
from shoal_stage.engine.fake import fake_manifest
from shoal_stage.server.fake import fake_pipeline
from shoaltest.listening import listening

TEXT = fake_text_model(template=CHATML_TOOLS)
SAID = "Hello 😀 ไทย 世界, and so on"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln 😀"}}\n</tool_call>'
NODE = Path(__file__).parent / "node"
CONTEXT = 4096  # bytes, here: tools are long texts
START_SECONDS = 60
INSTALL_SECONDS = 240


def recite(request: Any) -> tuple[int, ...]:
    """A call when tools are offered and none has answered yet, else text."""
    prompt = TEXT.tokenizer.decode(list(request.prompt), skip_special_tokens=False)
    calls = "Tools:" in prompt and "<|im_start|>tool" not in prompt
    return (*TEXT.encode(CALL if calls else SAID, add_special_tokens=False), EOS_ID)


@contextmanager
def in_background(served: AbstractAsyncContextManager[str]) -> Iterator[str]:
    """The context on an event loop of a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        url = asyncio.run_coroutine_threadsafe(served.__aenter__(), loop).result(START_SECONDS)
        try:
            yield url
        finally:
            asyncio.run_coroutine_threadsafe(served.__aexit__(None, None, None), loop).result(START_SECONDS)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(START_SECONDS)
        loop.close()


@asynccontextmanager
async def _recital() -> AsyncIterator[str]:
    app = create_app(FakeGenerator(script=recite), TEXT, ApiSettings(served_names=("fake",)), grammars=FakeCheck())
    async with listening(app) as url:
        yield url


def _vocabulary() -> LLTokenizer:
    return LLTokenizer(fake_tokenizer().to_str(), n_vocab=TEXT.vocab_size, eos_token=[EOS_ID])


@asynccontextmanager
async def _live(folder: Path) -> AsyncIterator[str]:
    model = folder / "model"
    (model / "tokenizer").mkdir(parents=True)
    manifest = fake_manifest(vocab_size=TEXT.vocab_size, max_context=CONTEXT)
    (model / MANIFEST_FILE).write_bytes(manifest.canonical_json())
    (model / "tokenizer" / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS_ID}))
    (model / "tokenizer" / "tokenizer.json").write_text(fake_tokenizer().to_str())
    (model / "tokenizer" / "chat_template.jinja").write_text(CHATML_TOOLS)
    async with AsyncExitStack() as stack:
        stages = await stack.enter_async_context(
            fake_pipeline(
                stages=2, vocab_size=TEXT.vocab_size, tokenizer=_vocabulary, max_context=CONTEXT, blocks=CONTEXT // 16
            )
        )
        plan = folder / "plan.json"
        planned = planned_at([stage.address for stage in stages], [stage.blocks for stage in stages], None)
        plan.write_text(Plan(pipelines=(planned.stages,)).model_dump_json(by_alias=True))
        argv = [f"--model={model}", f"--plan={plan}", "--listen=127.0.0.1:0", "--served-name=fake"]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-m", "shoal_router", "--die-with-parent", *argv),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdout is not None
        try:
            url = ""
            async with asyncio.timeout(START_SECONDS):
                async for line in process.stdout:
                    entry = json.loads(line)
                    url = entry.get("url", url)
                    if entry["event"] == "ready":
                        break
            yield url
        finally:
            process.kill()
            await process.wait()


@pytest.fixture(scope="session")
def recital() -> Iterator[str]:
    """URL of a router that says SAID or CALL."""
    with in_background(_recital()) as url:
        yield url


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a router over two stages."""
    with in_background(_live(tmp_path_factory.mktemp("live"))) as url:
        yield url


@pytest.fixture(scope="session")
def said() -> str:
    """What `recital` says."""
    return SAID


@dataclass(frozen=True)
class Node:
    """Runs the scripts of node/ with the packages that its lock file names."""

    folder: Path

    def run(self, script: str, url: str) -> dict[str, Any]:
        """The JSON that a script prints."""
        argv = ["node", str(self.folder / script)]
        done = subprocess.run(
            argv, env=os.environ | {"BASE_URL": f"{url}/v1"}, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="session")
def node() -> Node:
    """Installed once into the user's cache, under the lock file's digest."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js is not installed: the JavaScript clients are not tried")
    lock = (NODE / "package-lock.json").read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "shoal" / "test-clients"
    packages = cache / hashlib.sha256(lock).hexdigest()[:16]
    if not (packages / "installed").is_file():
        shutil.rmtree(packages, ignore_errors=True)
        packages.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(NODE / name, packages)
        argv = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(argv, cwd=packages, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        if done.returncode:
            pytest.skip(f"the JavaScript clients cannot be installed here: {done.stderr[-300:]}")
        (packages / "installed").touch()
    for script in NODE.glob("*.mjs"):
        shutil.copy(script, packages)
    return Node(packages)
