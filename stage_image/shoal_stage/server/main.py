"""`python -m shoal_stage serve`: one stage process (process.py has its events and exit codes)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import uvloop

from shoal.errors import UsageError
from shoal.grammar import tokenizer_of
from shoal.logs import log_to_stderr
from shoal.manifest import Manifest, read_manifest, verify_files
from shoal.parent import die_with_parent
from shoal.tracing import traces_of_environment
from shoal_stage.engine.interface import Engine
from shoal_stage.sample.grammar import Grammars
from shoal_stage.server.describe import describe_stage
from shoal_stage.server.listen import StageServer
from shoal_stage.server.process import serve_until_told
from shoal_stage.server.settings import ServeSettings, parse_arguments
from shoal_stage.server.stage import Patience


def serve(argv: Sequence[str]) -> int:
    """Serve until told to stop; returns the exit code. Raises ShoalError."""
    settings = parse_arguments(argv)
    if settings.die_with_parent:
        die_with_parent()
    log_to_stderr()
    manifest = read_manifest(settings.model)
    if settings.end > len(manifest.blocks):
        raise UsageError(
            f"blocks {settings.start}:{settings.end} do not exist: {manifest.name} has {len(manifest.blocks)} blocks"
        )
    return uvloop.run(_run(settings, manifest))


async def _run(settings: ServeSettings, manifest: Manifest) -> int:
    def load() -> Engine:
        """On the compute thread: the event loop answers Describe and health meanwhile."""
        from shoal_stage.engine.open import open_engine  # OpenVINO: half a second that listening need not wait for

        verify_files(settings.model, manifest.files_of(settings.start, settings.end))
        return open_engine(settings.kind, settings.model, manifest, settings.start, settings.end, settings.engine)

    description = describe_stage(
        manifest,
        settings.start,
        settings.end,
        engine=settings.kind.value,
        device=settings.engine.device.value,
        exact=settings.engine.exact,
        max_frame_bytes=settings.max_frame_bytes,
    )
    patience = Patience(step=settings.step_seconds, drain=settings.drain_seconds)
    grammars = None
    if settings.end == len(manifest.blocks):
        vocab_size, ends = manifest.shape.vocab_size, manifest.eos_token_ids
        grammars = Grammars(lambda: tokenizer_of(settings.model, vocab_size, ends), vocab_size)
    traces = traces_of_environment("shoal-stage")
    server = StageServer(load, description, patience, settings.tls, settings.health_listen, traces, grammars)
    try:
        return await serve_until_told(server, settings.listen)
    finally:
        if traces is not None:
            await asyncio.to_thread(traces.close)
