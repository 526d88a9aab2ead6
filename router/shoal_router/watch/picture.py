"""The picture as JSON: pure functions from snapshots to what the page draws. Times are seconds of the epoch (wall).

Field names are the page's: camelCase, with their unit where it is not plain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shoal.manifest import Manifest
from shoal.plan.document import Plan, StagePlan
from shoal.wire.messages import StageProgress, StageTiming
from shoal_router.pipeline.board import Seen, StageView
from shoal_router.schedule.speculation import SpeculationStats
from shoal_router.watch.journal import Event, RequestRecord, StepRecord
from shoal_router.watch.rates import PipelineRates
from shoal_router.watch.view import PipelineView

Wall = Callable[[float | None], float | None]
"""From the router's clock to the wall's."""


def card_of(manifest: Manifest, served_names: Iterable[str], plan: Plan | None, version: str) -> dict[str, Any]:
    """Model card and plan: what changes rarely."""
    shape = manifest.shape
    return {
        "version": version,
        "model": {
            "name": manifest.name,
            "servedNames": list(served_names),
            "digest": manifest.digest,
            "family": shape.family,
            "precision": str(manifest.precision),
            "groupSize": manifest.group_size,
            "layers": shape.layers,
            "hiddenSize": shape.hidden_size,
            "heads": shape.heads,
            "kvHeads": shape.kv_heads,
            "vocabulary": shape.vocab_size,
            "maxContext": shape.max_context,
            "weightBytes": sum(block.weight_bytes for block in manifest.blocks),
            "compiler": dict(manifest.compiler),
        },
        "plan": None if plan is None else _plan(plan),
    }


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        "streams": plan.streams,
        "maxContext": plan.max_context,
        "reasons": list(plan.reasons),
        "advice": list(plan.advice),
        "spares": list(plan.spares),
        "standbys": [
            {
                "pipeline": each.pipeline,
                "stage": each.stage.index,
                "node": each.stage.node,
                "device": str(each.stage.device),
                "holds": each.stage.describe_blocks(plan.layers),
            }
            for each in plan.standbys
        ],
    }


def pipeline_of(view: PipelineView, rates: PipelineRates, layers: int) -> dict[str, Any]:
    """One pipeline with its stages."""
    status = view.status
    progress = {each.stage: each for each in view.progress}
    return {
        "index": status.index,
        "ready": status.ready,
        "detail": status.detail,
        "epoch": status.epoch,
        "running": status.running,
        "waiting": status.waiting,
        "slots": view.slots,
        "inFlight": view.in_flight,
        "kvBlocks": status.kv_blocks,
        "kvBlocksFree": status.kv_blocks_free,
        "tokensPerSecond": rates.tokens,
        "stepsPerSecond": rates.steps,
        "stepMs": rates.step_ms,
        "hopMs": rates.hop_ms,
        "stages": [
            _stage(stage, status.ready, progress.get(stage.planned.index), rates, layers) for stage in view.stages
        ],
    }


def _stage(
    stage: StageView, serving: bool, progress: StageProgress | None, rates: PipelineRates, layers: int
) -> dict[str, Any]:
    planned, said = stage.planned, stage.description
    state = Seen.DRAINING if progress is not None and progress.draining else stage.state
    return {
        "index": planned.index,
        "node": planned.node,
        "address": planned.address,
        "device": said.device if said is not None else str(planned.device),
        "executionDevices": list(said.execution_devices) if said is not None else [],
        "fellBack": _fell_back(planned, said.execution_devices if said is not None else ()),
        "engine": said.engine if said is not None else "",
        "versions": dict(said.versions) if said is not None else {},
        "holds": planned.describe_blocks(layers),
        "layers": max(min(planned.block_end, layers + 1) - max(planned.block_start, 1), 0),
        "state": state,
        "serving": serving and state in (Seen.READY, Seen.DRAINING),
        "detail": stage.detail,
        "memory": {"weights": planned.memory.weights, "kv": planned.memory.kv, "peak": planned.memory.total},
        "limit": planned.limit,
        "plannedMs": planned.step_ms,
        "busyMs": progress.busy_ms if progress is not None else 0,
        "done": progress.done if progress is not None else 0,
        **rates.stage(planned.index),
    }


def _fell_back(planned: StagePlan, executes: Iterable[str]) -> bool:
    """Whether OpenVINO runs it elsewhere than was asked for: said aloud, as it is slow in silence."""
    found = tuple(executes)
    return bool(found) and not any(name.split(".")[0] == str(planned.device) for name in found)


def request_of(record: RequestRecord, wall: Wall) -> dict[str, Any]:
    """One request's line of the timeline."""
    return {
        "id": record.request_id,
        "seq": record.seq,
        "pipeline": record.pipeline,
        "arrived": wall(record.arrived),
        "admitted": wall(record.admitted),
        "first": wall(record.first),
        "ended": wall(record.ended),
        "promptTokens": record.prompt_tokens,
        "cachedTokens": record.cached_tokens,
        "tokens": record.tokens,
        "losses": record.losses,
        "outcome": record.outcome,
        "prefill": _between(record.at_admission, record.at_first),
        "decode": _between(record.at_first, record.at_end),
    }


def _between(before: Iterable[StageTiming], after: Iterable[StageTiming]) -> list[dict[str, float]]:
    """How long each stage computed, held frames in its queue and was idle, in ms; nothing unless both are known."""
    return [
        {
            "computeMs": (now.compute_us - was.compute_us) / 1e3,
            "queueMs": (now.queue_us - was.queue_us) / 1e3,
            "idleMs": (now.idle_us - was.idle_us) / 1e3,
        }
        for was, now in zip(before, after, strict=False)
        if was.stage == now.stage and now.compute_us >= was.compute_us
    ]


def step_of(record: StepRecord, wall: Wall) -> list[Any]:
    """[pipeline, sent, received, tokens, [sequences], [[compute, queue] in ms of each stage]]."""
    stages = [[timing.compute_us / 1e3, timing.queue_us / 1e3] for timing in record.timings]
    return [record.pipeline, wall(record.sent), wall(record.received), record.tokens, list(record.seqs), stages]


def event_of(event: Event, wall: Wall) -> dict[str, Any]:
    """One line of what happened."""
    return {"at": wall(event.at), "pipeline": event.pipeline, "kind": event.kind, "text": event.text}


def speculation_of(stats: SpeculationStats) -> list[dict[str, Any]]:
    """What became of each source's drafts."""
    sources: Mapping[str, Any] = stats.sources
    return [
        {"source": name, "proposed": each.proposed, "verified": each.verified, "accepted": each.accepted}
        for name, each in sorted(sources.items())
    ]
