"""The command line of each process of a local run. Pure: what a person could type to get the same process."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from shoal.plan.document import StagePlan
from shoal.resource import SpeculativeMode

ANSWER_GRACE_S = 2.0
"""How long running answers may go on after Ctrl-C: the person waits for the prompt to come back."""


class Engine(StrEnum):
    """How a stage keeps keys and values: in pages shared by all sequences, or as a state for each stream."""

    PAGED = "paged"
    STATEFUL = "stateful"


@dataclass(frozen=True, slots=True)
class LocalCommands:
    """Command lines for one run. `threads` is what one stage may use: all stages together must fit the cores."""

    model: Path
    openvino_cache: Path
    host: str
    port: int
    served_names: tuple[str, ...]
    streams: int
    max_context: int
    prefill_chunk: int
    max_queue: int
    threads: int
    exact: bool
    prefix_cache: bool
    recovery_attempts: int
    recovery_seconds: int
    speculative_mode: SpeculativeMode
    speculative_max_tokens: int
    draft_model: Path | None = None
    kv_precision: str | None = None
    engine: Engine | None = None

    def stage(self, stage: StagePlan, listen: str) -> list[str]:
        """Command line of a stage that listens on `listen`."""
        argv = [
            *_module("shoal_stage"),
            "serve",
            f"--model={self.model}",
            f"--blocks={stage.block_start}:{stage.block_end}",
            f"--device={stage.device}",
            f"--listen={listen}",
            f"--streams={self.streams}",
            f"--max-context={self.max_context}",
            f"--threads={self.threads}",
            f"--cache-dir={self.openvino_cache}",
            "--die-with-parent",
        ]
        if self.engine is not None:
            argv.append(f"--engine={self.engine}")
        if self.kv_precision is not None:
            argv.append(f"--kv-precision={self.kv_precision}")
        if self.exact:
            argv.append("--exact")
        return argv

    def draft(self, listen: str) -> list[str] | None:
        """Command line of the draft process; None when the run has no draft model."""
        if self.draft_model is None:
            return None
        return [
            *_module("shoal_stage"),
            "draft",
            f"--model={self.draft_model}",
            f"--listen={listen}",
            f"--streams={self.streams}",
            f"--max-context={self.max_context}",
            "--die-with-parent",
        ]

    def router(self, plan: Path, port: int | None = None, draft_address: str | None = None) -> list[str]:
        """Command line of the router; with `port` it listens on that one, not on its first choice."""
        return [
            *_module("shoal_router"),
            f"--plan={plan}",
            f"--model={self.model}",
            f"--listen={f'[{self.host}]' if ':' in self.host else self.host}:{self.port if port is None else port}",
            f"--prefill-chunk={self.prefill_chunk}",
            f"--max-queue={self.max_queue}",
            "--prefix-cache" if self.prefix_cache else "--no-prefix-cache",
            f"--speculative-mode={self.speculative_mode}",
            f"--speculative-max-tokens={self.speculative_max_tokens}",
            *([f"--draft-address={draft_address}"] if draft_address is not None else []),
            f"--recovery-attempts={self.recovery_attempts}",
            f"--recovery-seconds={self.recovery_seconds}",
            f"--grace-seconds={ANSWER_GRACE_S}",
            *(f"--served-name={name}" for name in self.served_names),
            "--die-with-parent",
        ]


def threads_for(cores: int, stages: int) -> int:
    """Threads of one stage: the cores shared out, at least one each."""
    return max(1, cores // stages)


def _module(name: str) -> list[str]:
    """This Python running a module. -P: a file of the user's folder must not stand in for a library."""
    return [sys.executable, "-P", "-m", name]
