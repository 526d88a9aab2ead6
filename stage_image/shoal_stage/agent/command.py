"""`python -m shoal_stage agent`: the options, the doctors' listener, and the loop until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from collections.abc import Sequence
from pathlib import Path

from shoal.errors import ResourceError
from shoal.logs import log_to_stderr
from shoal_stage.agent.node_object import SERVICE_ACCOUNT, ApiNode, server_of_pod
from shoal_stage.agent.readings import Places
from shoal_stage.agent.use import FREE_SECONDS, Patience
from shoal_stage.agent.watch import SECONDS, Agent
from shoal_stage.doctor.link import listen


def agent_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m shoal_stage agent", allow_abbrev=False)
    parser.add_argument("--node", required=True, metavar="NAME", help="the Node object of this PC")
    parser.add_argument("--host", type=Path, default=Path("/"), metavar="DIR", help="where the PC's /sys and /run are")
    parser.add_argument("--listen", metavar="[HOST]:PORT", help="answer the doctors of other PCs")
    parser.add_argument("--peers", default="", metavar="NAME:PORT", help="headless Service of all agents")
    parser.add_argument("--address", default="", metavar="IP", help="one's own address among the peers")
    parser.add_argument("--cache", type=Path, default=Path("/tmp"), metavar="DIR", help="the doctor looks at its room")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="between two looks; default %(default)s")
    parser.add_argument("--patience", type=float, default=1.0, help="factor of the times until a PC counts as in use")
    parser.add_argument("--free-after", type=float, default=FREE_SECONDS, help="seconds; default %(default)s")
    parser.add_argument("--account", type=Path, default=SERVICE_ACCOUNT, metavar="DIR", help="token and ca.crt")
    return parser


def agent_command(arguments: Sequence[str]) -> None:
    """Parse and run. Raises ResourceError."""
    options = agent_parser().parse_args(arguments)
    log_to_stderr()
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> None:
    agent = Agent(
        ApiNode(options.node, server_of_pod(), options.account),
        Places.of_host(options.host),
        cache=options.cache,
        peers=options.peers,
        mine=options.address,
        patience=Patience(options.patience, options.free_after),
    )
    main = asyncio.current_task()
    assert main is not None  # asyncio.run made it
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
    try:
        async with asyncio.TaskGroup() as tasks:
            if options.listen is not None:
                tasks.create_task(listen(options.listen), name="listen")
            tasks.create_task(agent.run(options.seconds), name="agent")
    except* ResourceError as errors:
        raise errors.exceptions[0] from errors
