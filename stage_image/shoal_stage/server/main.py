"""`python -m shoal_stage serve`: one stage process from its command line to its exit code.

    {"event": "listening", "address": "127.0.0.1:41234"}    as soon as it listens; Describe says LOADING
    {"event": "ready", "address": …, "capacity": …}         the model is loaded; health says SERVING

Exit codes: 0 after SIGTERM or SIGINT, otherwise that of the error, which is the last line on stderr. A stage whose
compute thread is gone ends by itself: whoever supervises it starts it anew.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict

import uvloop

from shoal.errors import ShoalError, UsageError
from shoal.leave import leave
from shoal.logs import announce, log_to_stderr
from shoal.manifest import Manifest, read_manifest, verify_files
from shoal.parent import die_with_parent
from shoal.wire.messages import StageState
from shoal_stage.engine.interface import Engine
from shoal_stage.server.describe import describe_stage
from shoal_stage.server.listen import StageServer
from shoal_stage.server.settings import ServeSettings, parse_arguments
from shoal_stage.server.stage import Patience

_log = logging.getLogger(__name__)


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
    return uvloop.run(_Process(settings, manifest).run())


class _Process:
    """The stage, the signals, and the two events."""

    def __init__(self, settings: ServeSettings, manifest: Manifest) -> None:
        self._settings = settings
        self._manifest = manifest
        self._told_to_stop = asyncio.Event()

    async def run(self) -> int:
        settings = self._settings
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        description = describe_stage(
            self._manifest,
            settings.start,
            settings.end,
            engine=settings.kind.value,
            device=settings.engine.device.value,
            exact=settings.engine.exact,
            max_frame_bytes=settings.max_frame_bytes,
        )
        server = StageServer(
            self._load,
            description,
            Patience(step=settings.step_seconds, drain=settings.drain_seconds),
            settings.tls,
            settings.health_listen,
        )
        address = await server.start(settings.listen)
        announce("listening", address=address)
        try:
            await self._first(server.stage.settled, self._told_to_stop)
            stage = server.stage.describe()
            if stage.state is StageState.READY and stage.capacity is not None:
                announce("ready", address=address, detail=stage.detail, capacity=asdict(stage.capacity))
                await self._first(server.stage.failed, self._told_to_stop)
        finally:
            finished = await server.stop()
        failure = server.stage.failure
        if not finished:
            # The compute thread is inside OpenVINO and cannot be stopped: leaving Python in order would wait for it.
            leave(_say(failure))
        if failure is not None:
            raise failure
        return 0

    def _load(self) -> Engine:
        """On the compute thread: the event loop answers Describe and health meanwhile."""
        from shoal_stage.engine.open import open_engine  # OpenVINO: half a second that listening need not wait for

        settings = self._settings
        verify_files(settings.model, self._manifest.files_of(settings.start, settings.end))
        return open_engine(settings.kind, settings.model, self._manifest, settings.start, settings.end, settings.engine)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._told_to_stop.is_set():
            os._exit(128 + number)
        _log.info("stopping", extra={"signal": number.name})
        self._told_to_stop.set()

    @staticmethod
    async def _first(*events: asyncio.Event) -> None:
        tasks = [asyncio.ensure_future(event.wait()) for event in events]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _say(failure: ShoalError | None) -> int:
    if failure is None:
        return 0
    print(f"error: {failure}", file=sys.stderr)  # noqa: T201 - the command's own output
    return failure.exit_code
