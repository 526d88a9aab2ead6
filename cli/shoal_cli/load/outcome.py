"""One measurement and its three ways out: a page, a JSON document, a table for the terminal."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Group

from shoal_cli.client import RouterClient
from shoal_cli.load.drift import Soak
from shoal_cli.load.page import html_page, soak_page
from shoal_cli.load.run import Load, run_load
from shoal_cli.load.soak import Levels, SoakLoad, kv_blocks_held, run_soak
from shoal_cli.load.terminal import drift_table, figures_table, say_point, say_window


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found, ready to be written or printed."""

    page: str
    document: Any
    table: Group


async def measure_points(client: RouterClient, model: str, load: Load) -> Outcome:
    """Every number of users with every length of prompt."""
    points = await run_load(client, model, load, say_point)
    page = html_page(points, model, client.url, _now())
    return Outcome(page, [asdict(point) for point in points], figures_table(points, model))


async def measure_drift(client: RouterClient, model: str, load: SoakLoad) -> Outcome:
    """One load, for long."""

    async def levels() -> Levels:
        return await kv_blocks_held(client), {}

    soak = await run_soak(client, model, load, say_window, levels)
    return Outcome(soak_page(soak, model, client.url, _now()), soak_document(soak), drift_table(soak, model))


def soak_document(soak: Soak) -> dict[str, Any]:
    """All of it as JSON has it."""
    changes = {name: {**asdict(change), "ratio": change.ratio} for name, change in soak.changes.items()}
    return {**asdict(soak), "changes": changes}


def _now() -> str:
    return datetime.now(UTC).astimezone().strftime("%Y-%m-%d %H:%M %Z")
