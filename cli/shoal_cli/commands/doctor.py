"""`shoal doctor`: whether this PC is fit to hold stages, and what is wrong if it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.plan.document import Device


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    device: Annotated[
        Device | None, typer.Option("--device", help="Only this device must be fit; default: nothing may be wrong.")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option("--peer", metavar="HOST:PORT", help="Measure the link to a listening doctor; may be repeated."),
    ] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="[HOST]:PORT", help="Answer other doctors until Ctrl-C.")
    ] = None,
    cache: Annotated[Path | None, typer.Option("--cache", help="The cache folder to look at.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print findings and facts as JSON.")] = False,
) -> None:
    """Check OpenVINO, devices and their drivers, memory, cache, clock and links, and test every device's answers."""
    import asyncio

    from shoal_cli.cache import cache_root
    from shoal_stage.doctor.command import doctor as examine
    from shoal_stage.doctor.link import listen as answer

    if listen is not None:
        asyncio.run(answer(listen))
        return
    examine(
        cache=cache or cache_root(),
        peers=peer or [],
        device=None if device is None else device.value,
        as_text=not json_output,
    )
