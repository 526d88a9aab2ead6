"""`python -m shoal_stage draft`: one draft process (server/process.py has its events and exit codes)."""

from __future__ import annotations

from collections.abc import Sequence

import uvloop

from shoal.logs import log_to_stderr
from shoal.manifest import Manifest, read_manifest, verify_files
from shoal.parent import die_with_parent
from shoal.vocabulary import Vocabulary, read_vocabulary
from shoal.wire.drafts import DraftModel
from shoal_stage.draft.server import DraftServer
from shoal_stage.draft.settings import DraftSettings, parse_arguments
from shoal_stage.engine.interface import Engine
from shoal_stage.engine.settings import EngineKind
from shoal_stage.server.process import serve_until_told
from shoal_stage.server.stage import Patience


def draft(argv: Sequence[str]) -> int:
    """Draft until told to stop; returns the exit code. Raises ShoalError."""
    settings = parse_arguments(argv)
    if settings.die_with_parent:
        die_with_parent()
    log_to_stderr()
    manifest = read_manifest(settings.model)
    verify_files(settings.model, manifest.tokenizer)
    return uvloop.run(_run(settings, manifest, read_vocabulary(settings.model, manifest)))


async def _run(settings: DraftSettings, manifest: Manifest, vocabulary: Vocabulary) -> int:
    blocks = len(manifest.blocks)

    def load() -> Engine:
        """On the compute thread: the event loop answers health meanwhile."""
        from shoal_stage.engine.open import open_engine  # OpenVINO: half a second that listening need not wait for

        verify_files(settings.model, manifest.files_of(0, blocks))
        return open_engine(EngineKind.PAGED, settings.model, manifest, 0, blocks, settings.engine)

    model = DraftModel(
        name=manifest.name,
        model_digest=manifest.digest,
        vocab_size=vocabulary.size,
        vocabulary=vocabulary.digest,
        max_context=settings.engine.max_context,
    )
    patience = Patience(step=settings.step_seconds, drain=settings.drain_seconds)
    server = DraftServer(load, model, patience, prefill_chunk=settings.prefill_chunk)
    return await serve_until_told(server, settings.listen)
