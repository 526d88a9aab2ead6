"""`shoal bench`: how fast an endpoint answers one user and several, to short prompts and long ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_URL = "http://127.0.0.1:8000"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(bench)


def bench(
    url: Annotated[str, typer.Argument(help="The endpoint's address.", envvar="SHOAL_URL")] = DEFAULT_URL,
    model: Annotated[str | None, typer.Option(help="Name of the model; default: the first one served.")] = None,
    concurrency: Annotated[str, typer.Option(help="Users at a time, separated by commas.")] = "1,2,4",
    prompt_tokens: Annotated[str, typer.Option(help="Lengths of prompts in tokens, separated by commas.")] = "64,512",
    max_tokens: Annotated[int, typer.Option(min=2, help="Longest answer, in tokens.")] = 64,
    requests: Annotated[int, typer.Option(min=1, help="Answers at each point; at least one a user.")] = 8,
    seed: Annotated[int, typer.Option(help="Of the prompts' words.")] = 0,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with charts.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    api_key: Annotated[str | None, typer.Option(help="Key, if the router wants one.", envvar="SHOAL_API_KEY")] = None,
) -> None:
    """Measure time to first token, time between tokens and throughput of an endpoint."""
    import asyncio
    from dataclasses import asdict
    from datetime import UTC, datetime

    from shoal.errors import UsageError
    from shoal_cli.client import RouterClient
    from shoal_cli.load.page import html_page
    from shoal_cli.load.run import Load, run_load
    from shoal_cli.load.terminal import figures_table, say_point
    from shoal_cli.terminal import results

    load = Load(
        _numbers(concurrency, "--concurrency"), _numbers(prompt_tokens, "--prompt-tokens"), max_tokens, requests, seed
    )

    async def measure() -> None:
        async with RouterClient(url, api_key) as client:
            names = await client.models()
            chosen = model or next(iter(names), None)
            if chosen is None:
                raise UsageError(f"{client.url} serves no model")
            points = await run_load(client, chosen, load, say_point)
            if html is not None:
                when = datetime.now(UTC).astimezone().strftime("%Y-%m-%d %H:%M %Z")
                html.write_text(html_page(points, chosen, client.url, when), encoding="utf-8")
            if json_output:
                typer.echo(json.dumps([asdict(point) for point in points], indent=2))
            else:
                results().print(figures_table(points, chosen))

    asyncio.run(measure())


def _numbers(text: str, option: str) -> tuple[int, ...]:
    from shoal.errors import UsageError

    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UsageError(f"{option} {text!r}: whole numbers above 0, separated by commas, such as 1,4,8")
    return tuple(int(word) for word in words)
