"""The parts of a recovery's pause, from what router and operator say in their logs and what the client sees."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from testcluster.serving_office import SYSTEM, Serving

# Who says it, with which words, and what has been done by then. In this order.
_STEPS: Final = (
    ("router", "the pipeline was lost", "detect: the router misses the stage"),
    ("operator", "gone by what the router says", "blame: it does not answer a call, and the operator hears so"),
    ("operator", "is to read plan", "replan: the plan names the standby"),
    ("router", "the plan has changed", "deliver: the kubelet brings the plan, the router reads it"),
    ("router", "opening ", "reach: every stage of it answers"),
    ("router", " open in epoch", "open: the standby is in the ring"),
)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a pause and how long it took, in seconds."""

    name: str
    seconds: float


def parts_of(serving: Serving, since: datetime.datetime, first_token: datetime.datetime) -> list[Part]:
    """What happened between the loss of a PC at `since` and the next token of an answer."""
    said = {"router": _log(serving, serving.namespace, "shoal.dev/role=router", since)}
    said["operator"] = _log(serving, SYSTEM, "app.kubernetes.io/name=shoal-operator", since)
    parts, before = [], since
    for who, words, name in _STEPS:
        at = next((at for at, text in said[who] if words in text and before <= at <= first_token), None)
        if at is not None:
            parts.append(Part(name, (at - before).total_seconds()))
            before = at
    return [
        *parts,
        Part("replay: ids are computed again, the next token comes", (first_token - before).total_seconds()),
    ]


def table(parts: Sequence[Part]) -> str:
    """As it is printed."""
    lines = [f"  {part.seconds:6.2f} s  {part.name}" for part in parts]
    return "\n".join([*lines, f"  {sum(part.seconds for part in parts):6.2f} s  in all"])


def _log(
    serving: Serving, namespace: str, selector: str, since: datetime.datetime
) -> list[tuple[datetime.datetime, str]]:
    said = serving.kubectl(
        "logs", "--namespace", namespace, "--selector", selector, "--since-time", since.isoformat(), "--tail=-1"
    )
    lines = []
    for line in said.splitlines():
        try:
            entry = json.loads(line)
            lines.append((datetime.datetime.fromisoformat(entry["time"]), str(entry["message"])))
        except (ValueError, KeyError, TypeError):
            continue  # An event on stdout, or a library's own words.
    return sorted(lines, key=lambda each: each[0])
