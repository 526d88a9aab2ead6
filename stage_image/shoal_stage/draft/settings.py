"""`python -m shoal_stage draft`: its options, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.plan.document import Device
from shoal_stage.engine.settings import EngineSettings, KvPrecision
from shoal_stage.server.settings import Parser, add_process_options, count


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """One draft process."""

    model: Path
    listen: str
    engine: EngineSettings
    prefill_chunk: int
    step_seconds: float
    drain_seconds: float
    die_with_parent: bool


def parse_arguments(argv: Sequence[str]) -> DraftSettings:
    """The settings on a command line. Raises UsageError with the option's name."""
    parser = Parser(
        prog="python -m shoal_stage draft", description="Draft for a router with a small model.", allow_abbrev=False
    )
    add = parser.add_argument
    # It shares its machine with the router, and on one machine with the stages that it is to hide behind.
    add("--threads", type=count, default=1, metavar="N", help="compute threads (default %(default)s)")
    add("--prefill-chunk", type=count, default=128, metavar="N", help="prompt tokens a step (default %(default)s)")
    add_process_options(parser)
    given = parser.parse_args(argv)
    return DraftSettings(
        model=given.model,
        listen=given.listen,
        engine=EngineSettings(
            device=Device(given.device),
            kv_precision=KvPrecision(given.kv_precision) if given.kv_precision else None,
            sequences=given.streams,
            max_context=given.max_context,
            threads=given.threads,
            cache_dir=given.cache_dir,
        ),
        prefill_chunk=given.prefill_chunk,
        step_seconds=given.step_seconds,
        drain_seconds=given.drain_seconds,
        die_with_parent=given.die_with_parent,
    )
