"""The kopf side: the watch of ShardedModels, start and stop. Thin: everything goes to the Controller.

`on.event` rather than create, update and resume handlers: those keep their progress in annotations, which are writes
of their own, and one reconcile serves every cause. No handler here makes kopf add a finalizer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import kopf
from aiohttp import web
from prometheus_client import start_http_server

from shoal.api_keys import ApiKeys
from shoal.errors import ResourceError, ShoalError
from shoal.resource import GROUP, PLURAL, VERSION
from shoal_operator.cluster.api import connect
from shoal_operator.cluster.kinds import NODE, SHARDED_MODEL
from shoal_operator.controller import Controller
from shoal_operator.errors import OperatorError
from shoal_operator.health import serve_health
from shoal_operator.metrics import Metrics
from shoal_operator.ports import listening
from shoal_operator.settings import OperatorSettings
from shoal_operator.watch.picture import models_of
from shoal_operator.watch.serve import Page, serve_page

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Running:
    """What the handlers share: kopf's memo. `broken`: the controller ended before kopf was ending."""

    settings: OperatorSettings
    metrics: Metrics
    stop: asyncio.Event
    ending: bool = False
    broken: bool = False
    controller: Controller | None = None
    task: asyncio.Task[None] | None = None
    served: list[web.AppRunner] = field(default_factory=list)
    problem: ShoalError | None = None
    """Why it could not start."""


def register(registry: kopf.OperatorRegistry) -> None:
    """Hand the handlers to kopf."""
    kopf.on.login(registry=registry)(login)
    kopf.on.startup(registry=registry)(start)
    kopf.on.cleanup(registry=registry)(end)
    kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)(event)


def login(**arguments: Any) -> kopf.ConnectionInfo | None:
    """The same credentials as the operator's own client: the pod's ServiceAccount, else the kubeconfig."""
    return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)


async def start(memo: Any, settings: kopf.OperatorSettings, **_: Any) -> None:
    """Connect, and start the controller beside kopf."""
    settings.posting.enabled = False
    settings.watching.server_timeout = 240
    settings.watching.client_timeout = 300
    settings.watching.connect_timeout = 10
    # Otherwise kopf lists the cluster's namespaces first, and where it may not, tries for a minute before it watches.
    settings.scanning.disabled = bool(memo.running.settings.watch_namespaces)
    # kopf writes neither; the names are ours should a future handler make it do so.
    settings.persistence.finalizer = f"{GROUP}/operator"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    running: Running = memo.running
    try:
        cluster = await connect()
        running.controller = Controller(cluster, running.settings, running.metrics)
        async with AsyncExitStack() as undo:
            await undo.enter_async_context(cluster)
            await _serve(running, running.controller)
            undo.pop_all()
    except ResourceError as error:
        # kopf would try again every minute; what is missing is for a person to set, and the process's end says so.
        running.problem = error
        running.stop.set()
        return

    async def run(controller: Controller) -> None:
        async with cluster:
            await controller.run()

    running.task = asyncio.create_task(run(running.controller), name="controller")
    running.task.add_done_callback(lambda task: _ended(running, task))


async def _serve(running: Running, controller: Controller) -> None:
    """Metrics, probes and page, each on its port. Raises ResourceError for one that is not to be had."""
    settings = running.settings
    if settings.metrics_port:
        with listening("the metrics", "metrics_port", settings.metrics_port):
            start_http_server(settings.metrics_port, registry=running.metrics.registry)
    if settings.health_port:
        with listening("the probes", "health_port", settings.health_port):
            running.served.append(await serve_health(controller, settings.health_port))
    if settings.page_port:
        with listening("the page of all models", "page_port", settings.page_port):
            running.served.append(await _serve_page(controller, settings))


async def end(memo: Any, **_: Any) -> None:
    """Give the Lease up and stop."""
    running: Running = memo.running
    running.ending = True
    if running.task is not None:
        running.task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ExceptionGroup):
            await running.task
    for runner in running.served:
        await runner.cleanup()


async def event(memo: Any, body: kopf.Body, type: str | None, **_: Any) -> None:
    """One event of one ShardedModel."""
    controller = memo.running.controller
    if controller is not None:
        controller.saw(type, _plain(body))


async def _serve_page(controller: Controller, settings: OperatorSettings) -> web.AppRunner:
    """Of what the cache holds, which every replica keeps in step with the cluster, the leader or not."""
    keys = None if settings.page_keys is None else ApiKeys(settings.page_keys, time.monotonic)
    cache = controller.cache
    page = Page(lambda: models_of(cache.of_kind(SHARDED_MODEL), cache.of_kind(NODE)), keys)
    return await serve_page(page, settings.page_port, everywhere=keys is not None)


def _ended(running: Running, task: asyncio.Task[None]) -> None:
    """The controller never ends by itself: when it does, the process must end too, and be started afresh."""
    if not task.cancelled():
        log.error("the controller ended, stopping: %s", _reason(task.exception()))
        running.broken = not running.ending
    running.stop.set()


def _reason(error: BaseException | None) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, OperatorError) else repr(error)


def _plain(body: Any) -> Any:
    """kopf's read-only views as plain dicts and lists."""
    if isinstance(body, dict | kopf.Body) or hasattr(body, "items"):
        return {key: _plain(value) for key, value in body.items()}
    return [_plain(value) for value in body] if isinstance(body, list | tuple) else body
