"""The API server's audit log: who wrote what, counted without trusting the writer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Write:
    """One request that asked for a change."""

    user: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    agent: str

    @property
    def what(self) -> str:
        """The resource with its subresource, such as `shardedmodels/status`."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


@dataclass(frozen=True, slots=True)
class AuditLog:
    """The log file. A position in it (`mark`) separates what was before from what comes after."""

    path: Path

    def mark(self) -> int:
        """The position of the log's end: pass it to `writes` to see only what came later."""
        return self.path.stat().st_size if self.path.exists() else 0

    def writes(self, *, user: str | None = None, since: int = 0, leases: bool = False) -> list[Write]:
        """The requests since the mark that asked for a change, of one user or of all.

        Leases are left out unless asked for: renewing one is how leader election works, and no work of a reconcile.
        Dry runs change nothing and are left out too.
        """
        found = [_write(event) for event in self._events(since) if "dryRun=" not in event["requestURI"]]
        return [
            write for write in found if (user is None or write.user == user) and (leases or write.resource != "leases")
        ]

    def _events(self, since: int) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        with self.path.open("rb") as log:
            log.seek(since)
            for line in log:
                # A line that is being written just now has no end yet.
                if line.endswith(b"\n"):
                    event = json.loads(line)
                    if "objectRef" in event:
                        yield event


def service_account_user(namespace: str, name: str) -> str:
    """The user that a ServiceAccount's token authenticates as."""
    return f"system:serviceaccount:{namespace}:{name}"


def _write(event: dict[str, Any]) -> Write:
    target = event["objectRef"]
    return Write(
        user=event["user"]["username"],
        verb=event["verb"],
        resource=target.get("resource", ""),
        subresource=target.get("subresource", ""),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        code=event.get("responseStatus", {}).get("code", 0),
        agent=event.get("userAgent", ""),
    )
