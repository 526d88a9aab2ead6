"""`python -m shoal_operator`: run the operator with the settings of its environment."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any, cast

import kopf

from shoal.errors import ShoalError
from shoal_operator.handlers import Running, register
from shoal_operator.logs import set_up_logs
from shoal_operator.metrics import Metrics
from shoal_operator.settings import OperatorSettings


async def run(settings: OperatorSettings) -> int:
    """Until SIGTERM or SIGINT (0), or until the controller ends, as it does when it leads no more (1).

    Raises the ShoalError for which it could not start.
    """
    running = Running(settings=settings, metrics=Metrics(), stop=asyncio.Event())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        # Until kopf takes both signals for itself, of which no word comes back: what they did shows in `running`.
        loop.add_signal_handler(number, running.stop.set)
    registry = kopf.OperatorRegistry()
    register(registry)
    await kopf.operator(
        registry=registry,
        memo=kopf.Memo(running=running),
        standalone=True,  # leadership is a Lease; kopf's peering is a priority, not an election
        namespaces=list(settings.watch_namespaces),
        clusterwide=not settings.watch_namespaces,
        stop_flag=running.stop,
        # kopf would make one of the user's name, and in the operator's image the user has none.
        identity=cast("Any", settings.pod_name),
    )
    if running.problem is not None:
        raise running.problem
    return 1 if running.broken else 0


def main() -> int:
    """Errors become one line and an exit code."""
    try:
        settings = OperatorSettings.from_environment(os.environ)
        set_up_logs(settings.log_format, settings.log_level)
        return asyncio.run(run(settings))
    except ShoalError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - a command's own output
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
