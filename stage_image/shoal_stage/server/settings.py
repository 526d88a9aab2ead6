"""`python -m shoal_stage serve`: its options, and what they mean."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from shoal.errors import UsageError
from shoal.patience import FIRST_STEP_SECONDS
from shoal.plan.document import Device
from shoal.wire.tls import TlsDirectory
from shoal_stage.engine.settings import EngineKind, EngineSettings, KvPrecision

_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """One stage process."""

    model: Path
    start: int
    end: int
    listen: str
    kind: EngineKind
    engine: EngineSettings
    max_frame_bytes: int
    step_seconds: float
    drain_seconds: float
    die_with_parent: bool
    tls: TlsDirectory | None = None
    health_listen: str = ""


class Parser(argparse.ArgumentParser):
    """Its errors are UsageErrors: one line."""

    def error(self, message: str) -> NoReturn:
        """See ArgumentParser.error."""
        raise UsageError(f"{message} (see {self.prog} --help)")


def parse_arguments(argv: Sequence[str]) -> ServeSettings:
    """The settings on a command line. Raises UsageError with the option's name."""
    given = _parser().parse_args(argv)
    start, end = _blocks(given.blocks)
    return ServeSettings(
        model=given.model,
        start=start,
        end=end,
        listen=given.listen,
        kind=EngineKind(given.engine),
        engine=EngineSettings(
            device=Device(given.device),
            exact=given.exact,
            kv_precision=KvPrecision(given.kv_precision) if given.kv_precision else None,
            sequences=given.streams,
            max_context=given.max_context,
            kv_blocks=given.kv_blocks,
            threads=given.threads,
            cache_dir=given.cache_dir,
        ),
        max_frame_bytes=given.max_frame_mib * _MEBIBYTE,
        step_seconds=given.step_seconds,
        drain_seconds=given.drain_seconds,
        die_with_parent=given.die_with_parent,
        tls=TlsDirectory(given.tls_dir) if given.tls_dir else None,
        health_listen=given.health_listen,
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m shoal_stage serve", description="Serve blocks of a model.", allow_abbrev=False)
    add = parser.add_argument
    add("--blocks", required=True, metavar="START:END", help="half-open range of blocks, as the plan names it")
    add("--engine", choices=[str(each) for each in EngineKind], default="paged", help="default %(default)s")
    add("--kv-blocks", type=count, metavar="N", help="KV pages; default: as many as streams x max-context takes")
    add("--exact", action="store_true", help="f32 throughout: the same tokens for every split, engine and batch")
    add("--threads", type=count, metavar="N", help="compute threads; default: OpenVINO's choice")
    add("--max-frame-mib", type=count, default=64, metavar="N", help="largest frame taken (default %(default)s)")
    add("--tls-dir", type=Path, metavar="DIR", help="ca.crt, tls.crt, tls.key: only mutual TLS is spoken")
    add("--health-listen", default="", metavar="HOST:PORT", help="a plain port for probes, which hold no certificate")
    add_process_options(parser)
    return parser


def add_process_options(parser: argparse.ArgumentParser) -> None:
    """What every process with an engine takes."""
    add = parser.add_argument
    add("--model", required=True, type=Path, metavar="DIR", help="model directory")
    add("--device", choices=[str(each) for each in Device], default="CPU", help="default %(default)s")
    add("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="port 0: any free one (default %(default)s)")
    add("--streams", type=count, default=8, metavar="N", help="sequences held at once (default %(default)s)")
    add("--max-context", type=count, default=2048, metavar="N", help="tokens of a sequence (default %(default)s)")
    add("--kv-precision", choices=[str(each) for each in KvPrecision], help="default f16; exact mode has f32")
    add("--cache-dir", type=Path, metavar="DIR", help="OpenVINO's compiled models: faster starts")
    longest_first = "a first step longer than this: the device hangs; later ones are measured by those before them"
    add("--step-seconds", type=_seconds, default=FIRST_STEP_SECONDS, metavar="S", help=longest_first)
    add("--drain-seconds", type=_seconds, default=10.0, metavar="S", help="how long the step in hand may take to end")
    add("--die-with-parent", action="store_true", help="end when the process that started this one ends (Linux)")


def count(text: str) -> int:
    """An option's value that counts something."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a count: 1 or more is meant")
    return int(text)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a time: seconds above 0 are meant")
    return seconds


def _blocks(text: str) -> tuple[int, int]:
    start, colon, end = text.partition(":")
    if not (colon and start.isdecimal() and end.isdecimal() and int(start) < int(end)):
        raise UsageError(f"--blocks {text} is not a range: START:END is meant, as in 0:17")
    return int(start), int(end)
