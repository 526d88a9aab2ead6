"""Real gRPC stage servers in this process, for tests of routers and of the server itself.

    async with fake_pipeline(stages=2) as stages:          # two FakeEngine stages of one fake model, listening
        addresses = [stage.address for stage in stages]    # "127.0.0.1:41234", …
        digest = stages[0].manifest.digest                 # what Open must name
        ranges = [stage.blocks for stage in stages]        # (0, 3), (3, 6): half-open block ranges

    manifest = fake_manifest(layers=4)
    async with start_stage(lambda: FakeEngine(0, 6), manifest=manifest, blocks=(0, 6)) as stage: ...

`shoal_stage.engine.fake.greedy_text(prompt, count)` is the oracle: what plain decoding of the fake model gives.
`StageHandle.engine` is the loaded engine: `engine.live` must be empty when every sequence was released.
`StageHandle.kill()` makes the stage vanish as a power cut would: its streams break, nothing is drained.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from llguidance import LLTokenizer

from shoal.manifest import Manifest
from shoal.tracing import Traces
from shoal.wire.messages import Row
from shoal.wire.tls import TlsDirectory
from shoal_stage.engine.fake import FakeEngine, fake_manifest
from shoal_stage.engine.interface import Engine
from shoal_stage.sample.grammar import Grammars
from shoal_stage.server.describe import describe_stage
from shoal_stage.server.listen import StageServer
from shoal_stage.server.stage import Patience, Stage

LOCAL = "127.0.0.1:0"
GATE_SECONDS = 60.0


@dataclass(slots=True)
class StageHandle:
    """A running stage."""

    address: str
    manifest: Manifest
    blocks: tuple[int, int]
    server: StageServer
    engines: list[Any]

    @property
    def engine(self) -> Any:
        """The engine, once loaded."""
        return self.engines[0]

    @property
    def stage(self) -> Stage:
        """The stage behind the server."""
        return self.server.stage

    async def kill(self) -> None:
        """Vanish: close every connection at once."""
        await self.server.abort()


@asynccontextmanager
async def start_stage(
    engine_factory: Callable[[], Engine],
    *,
    manifest: Manifest,
    blocks: tuple[int, int],
    listen: str = LOCAL,
    patience: Patience | None = None,
    max_frame_bytes: int = 64 << 20,
    versions: dict[str, str] | None = None,
    wait_ready: bool = True,
    tls: TlsDirectory | None = None,
    traces: Traces | None = None,
    grammars: Grammars | None = None,
) -> AsyncIterator[StageHandle]:
    """A stage server on the loopback; with `wait_ready` it has loaded (or failed) when the body runs."""
    engines: list[Any] = []

    def load() -> Engine:
        engine = engine_factory()
        engines.append(engine)
        return engine

    description = describe_stage(
        manifest, *blocks, engine="fake", device="CPU", exact=True, max_frame_bytes=max_frame_bytes, versions=versions
    )
    server = StageServer(
        load,
        description,
        patience or Patience(hand_over=0.2, drain=5.0),
        tls,
        traces=traces,
        grammars=grammars,
    )
    address = await server.start(listen)
    try:
        if wait_ready:
            await server.stage.settled.wait()
        yield StageHandle(address, manifest, blocks, server, engines)
    finally:
        await server.stop()


@asynccontextmanager
async def fake_pipeline(
    stages: int = 2,
    *,
    layers: int = 4,
    vocab_size: int = 256,
    on_run: Callable[[int, Sequence[Row]], None] | None = None,
    patience: Patience | None = None,
    tls: TlsDirectory | None = None,
    traces: Traces | None = None,
    tokenizer: Callable[[], LLTokenizer] | None = None,
    **engine: Any,
) -> AsyncIterator[list[StageHandle]]:
    """`stages` FakeEngine stages that together hold one fake model. `on_run(stage, rows)` is called before each step.

    With a `tokenizer` the last one follows grammars. Further arguments go to FakeEngine (paged, sequences, blocks,
    block_size, max_context).
    """
    manifest = fake_manifest(layers=layers, vocab_size=vocab_size, max_context=engine.get("max_context", 512))
    total = layers + 2
    cuts = [total * index // stages for index in range(stages + 1)]

    def factory(index: int) -> Callable[[], Engine]:
        def hook(rows: Sequence[Row]) -> None:
            if on_run is not None:
                on_run(index, rows)

        return lambda: FakeEngine(
            cuts[index], cuts[index + 1], layers=layers, vocab_size=vocab_size, on_run=hook, **engine
        )

    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                start_stage(
                    factory(index),
                    manifest=manifest,
                    blocks=(cuts[index], cuts[index + 1]),
                    patience=patience,
                    tls=tls,
                    traces=traces,
                    grammars=Grammars(tokenizer, vocab_size) if tokenizer and index == stages - 1 else None,
                )
            )
            for index in range(stages)
        ]


@asynccontextmanager
async def waiting_pipeline(gate: threading.Event, patience: Patience | None = None) -> AsyncIterator[list[StageHandle]]:
    """One stage whose steps wait until the gate is set, at the latest when the body ends."""

    def on_run(_stage: int, _rows: Sequence[Row]) -> None:
        gate.wait(GATE_SECONDS)

    async with fake_pipeline(1, on_run=on_run, patience=patience) as handles:
        try:
            yield handles
        finally:
            gate.set()
