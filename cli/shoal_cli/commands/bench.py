"""`shoal bench`: how fast an endpoint answers one user and several, to short prompts and long ones, or for how long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_URL = "http://127.0.0.1:8000"
_REQUESTS = 8


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(bench)


def bench(
    url: Annotated[str, typer.Argument(help="The endpoint's address.", envvar="SHOAL_URL")] = DEFAULT_URL,
    model: Annotated[str | None, typer.Option(help="Name of the model; default: the first one served.")] = None,
    concurrency: Annotated[
        str | None, typer.Option(help="Users at a time, separated by commas; default 1,2,4, with --minutes 4.")
    ] = None,
    prompt_tokens: Annotated[
        str | None,
        typer.Option(help="Lengths of prompts in tokens, separated by commas; default 64,512, with --minutes 64."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Longest answer, in tokens.")] = 64,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Answers at each point, at least one a user; default 8.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1, help="Keep one number of users busy for so long, with prompts of all lengths in turn: shows drift."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the prompts' words.")] = 0,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with charts.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    api_key: Annotated[str | None, typer.Option(help="Key, if the router wants one.", envvar="SHOAL_API_KEY")] = None,
) -> None:
    """Measure time to first token, time between tokens and throughput of an endpoint."""
    import asyncio

    from shoal.errors import UsageError
    from shoal_cli.client import RouterClient
    from shoal_cli.load.outcome import measure_drift, measure_points
    from shoal_cli.load.run import Load
    from shoal_cli.load.soak import SoakLoad
    from shoal_cli.terminal import results

    users = _numbers(concurrency or ("1,2,4" if minutes is None else "4"), "--concurrency")
    lengths = _numbers(prompt_tokens or ("64,512" if minutes is None else "64"), "--prompt-tokens")
    if minutes is not None and len(users) > 1:
        raise UsageError(
            f"--minutes keeps one number of users busy, and --concurrency {concurrency!r} has {len(users)}"
        )
    if minutes is not None and requests is not None:
        raise UsageError("--minutes asks for as long as it says: leave out --requests, or --minutes")
    if html is not None and not html.absolute().parent.is_dir():
        raise UsageError(f"--html {html}: there is no folder {html.parent}")

    async def measure() -> None:
        async with RouterClient(url, api_key) as client:
            names = await client.models()
            chosen = model or next(iter(names), None)
            if chosen is None:
                raise UsageError(f"{client.url} serves no model")
            if minutes is None:
                load = Load(users, lengths, max_tokens, requests or _REQUESTS, seed)
                found = await measure_points(client, chosen, load)
            else:
                soak = SoakLoad(users[0], lengths, max_tokens, minutes * 60, seed)
                found = await measure_drift(client, chosen, soak)
            # Printed first: a page that cannot be written must not take half an hour's figures with it.
            if json_output:
                typer.echo(json.dumps(found.document, indent=2))
            else:
                results().print(found.table)
            if html is not None:
                html.write_text(found.page, encoding="utf-8")

    asyncio.run(measure())


def _numbers(text: str, option: str) -> tuple[int, ...]:
    from shoal.errors import UsageError

    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UsageError(f"{option} {text!r}: whole numbers above 0, separated by commas, such as 1,4,8")
    return tuple(int(word) for word in words)
