"""`python -m shoal_router --plan plan.json --model DIR --listen HOST:PORT …`: the router as a process.

    settings ─> port ─> TextModel ─> Fleet(a RingOpener for each pipeline of the plan, drafter) ─> API ─> serve

What the user can put right ends the process with one line on stderr and the error's exit code. What only time can put
right (stages that still load, a plan without addresses yet) does not: the API answers 503 with the reason meanwhile.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import uvloop

from shoal import __version__
from shoal.api_keys import ApiKeys
from shoal.errors import PlanError, ShoalError
from shoal.leave import leave
from shoal.logs import log_to_stderr
from shoal.manifest import read_manifest
from shoal.parent import die_with_parent
from shoal.resource import SpeculativeMode
from shoal.tracing import traces_of_environment
from shoal.vocabulary import read_vocabulary
from shoal.wire.refused import RefusedPeers
from shoal.wire.tls import TlsDirectory
from shoal_router.api.app import create_app
from shoal_router.constrain.check import ProcessCheck
from shoal_router.draft.choice import drafter_for
from shoal_router.draft.model import ModelDrafter
from shoal_router.fleet.fleet import Fleet
from shoal_router.https import ServerCertificate
from shoal_router.measure import TEXT, Measurer
from shoal_router.metrics.families import Families
from shoal_router.metrics.levels import Levels
from shoal_router.metrics.listen import metrics_app
from shoal_router.metrics.pipeline import PipelineMetrics
from shoal_router.metrics.requests import MeteredGenerator
from shoal_router.pipeline.opener import RingOpener
from shoal_router.pipeline.plan_source import PlanFile, PlannedPipeline, PlanSource, pipelines_of, read_plan
from shoal_router.schedule.policy import SpeculationSettings
from shoal_router.serve import Companion, listen, serve
from shoal_router.settings import ApiSettings, RouterSettings, parse_arguments
from shoal_router.step_loop import StepLoopSettings
from shoal_router.text.model import load_text_model
from shoal_router.watch.feed import Watch
from shoal_router.watch.lost import LostStages
from shoal_router.watch.picture import card_of


@dataclass(frozen=True, slots=True)
class PlanForModel:
    """A plan source that holds the stages to the router's own model: other weights would answer to wrong ids."""

    source: PlanSource
    digest: str

    def read(self) -> PlannedPipeline:
        """Raises PlanError when the plan is for another model."""
        planned = self.source.read()
        if planned.model_digest not in (None, self.digest):
            raise PlanError(
                f"the plan is for model {planned.model_digest:.12}…, the router was started with {self.digest:.12}…: "
                "give both the same model directory"
            )
        return replace(planned, model_digest=self.digest)


def main(argv: Sequence[str]) -> int:
    """Run until a signal; gives the exit code."""
    try:
        run(parse_arguments(argv))
    except ShoalError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


def run(settings: RouterSettings) -> None:
    """Serve until a signal. Raises ShoalError for what makes it pointless to start."""
    if settings.die_with_parent:
        die_with_parent()
    log_to_stderr()
    # Its start and stop lines say what the events say already.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    if not settings.plan.is_file():
        raise PlanError(f"there is no plan at {settings.plan}")
    keys = ApiKeys(settings.api_keys, time.monotonic) if settings.api_keys is not None else None
    manifest = read_manifest(settings.model)
    certificate = ServerCertificate(settings.api_tls_dir) if settings.api_tls_dir is not None else None
    text = load_text_model(settings.model)
    bound = listen(settings.host, settings.port)
    figures = listen(*settings.metrics, "--metrics-listen") if settings.metrics is not None else None
    speculative = settings.speculative_mode is not SpeculativeMode.OFF
    model = None
    if speculative and settings.draft_address is not None:
        model = ModelDrafter(settings.draft_address, read_vocabulary(settings.model, manifest))
    families = Families()
    refused: defaultdict[int, RefusedPeers] = defaultdict(RefusedPeers)
    runtime = Fleet(
        lambda: pipelines_of(settings.plan),
        lambda index: RingOpener(
            PlanForModel(PlanFile(settings.plan, index), text.digest),
            prefill_chunk=settings.prefill_chunk,
            tls=TlsDirectory(settings.tls_dir) if settings.tls_dir else None,
            refused=refused[index],
        ),
        StepLoopSettings(
            prefill_chunk=settings.prefill_chunk,
            max_waiting=settings.max_queue,
            prefix_cache=settings.prefix_cache,
            speculation=SpeculationSettings(settings.speculative_mode, settings.speculative_max_tokens),
            recovery_attempts=settings.recovery_attempts,
            recovery_seconds=settings.recovery_seconds,
        ),
        drafter=drafter_for(model) if speculative else None,
        observer_of=lambda index: PipelineMetrics(families, index),
    )
    if model is not None:
        model.when_more(runtime.nudge)
    api = ApiSettings(
        served_names=settings.served_names or (text.name,),
        keep_alive_seconds=settings.keep_alive_seconds,
        requests_per_key=settings.requests_per_key,
        requests_per_minute=settings.requests_per_minute,
    )
    families.registry.register(
        Levels(runtime.status, runtime.speculation, lambda: {index: each.counts for index, each in refused.items()})
    )
    watch = Watch(
        runtime,
        lambda: read_plan(settings.plan),
        lambda plan: card_of(manifest, api.served_names, plan, __version__),
    )
    runtime.journal.traces = traces = traces_of_environment("shoal-router")
    grammars = ProcessCheck(settings.model, manifest.shape.vocab_size, manifest.eos_token_ids)
    app = create_app(
        MeteredGenerator(runtime, families),
        text,
        api,
        keys,
        watch,
        traces,
        lambda reason: families.rejected.labels(reason).inc(),
        grammars=grammars,
    )
    companions: list[Companion] = [grammars] if model is None else [grammars, model]
    measurer = None
    if settings.measure:
        prompt = text.encode(TEXT, add_special_tokens=True)
        measurer = Measurer(runtime, lambda: read_plan(settings.plan), prompt)
        companions.append(measurer)
    lost = LostStages(runtime.look)
    metrics = None
    if figures is not None:
        told = metrics_app(families.registry, lost, lambda: measurer.measured if measurer is not None else None)
        metrics = told, figures

    def close_streams() -> None:
        watch.close()
        lost.close()

    uvloop.run(serve(app, runtime, bound, settings.grace_seconds, companions, close_streams, metrics, certificate))
    if traces is not None:
        traces.close()


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
