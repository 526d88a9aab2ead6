"""The PC's own Node object: one verb on its status, which is all that the agent may do in the cluster.

Condition and annotations go in one patch: like a kubelet, an agent may annotate its node by way of the status. An empty
patch changes nothing and answers with the object, so that reading needs no right of its own. Two calls of the standard
library do this; a client of the API server would be half of the process's memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Final, Protocol

from shoal.errors import ResourceError

SECONDS: Final = 10.0
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class NodeObject(Protocol):
    """The seam: `ApiNode` is the real one, `FakeNode` keeps the object in memory."""

    async def patch(
        self, conditions: tuple[Mapping[str, Any], ...] = (), annotations: Mapping[str, str | None] | None = None
    ) -> dict[str, Any]:
        """Set these conditions and annotations (None removes one), leave all others; the object as it is then.

        Raises ResourceError when the API server does not do it.
        """
        ...


class ApiNode:
    """By the API server, as the pod's ServiceAccount; its token is read anew each time, because it changes."""

    def __init__(self, name: str, server: str, account: Path = SERVICE_ACCOUNT) -> None:
        self._url = f"{server}/api/v1/nodes/{name}/status"
        self._account = account

    async def patch(
        self, conditions: tuple[Mapping[str, Any], ...] = (), annotations: Mapping[str, str | None] | None = None
    ) -> dict[str, Any]:
        """See NodeObject."""
        return await asyncio.to_thread(self._patch, patch_of(conditions, annotations))

    def _patch(self, patch: Mapping[str, Any]) -> dict[str, Any]:
        try:
            token = (self._account / "token").read_text(encoding="ascii").strip()
            context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
            request = urllib.request.Request(
                self._url,
                json.dumps(patch).encode(),
                {"Authorization": f"Bearer {token}", "Content-Type": "application/strategic-merge-patch+json"},
                method="PATCH",
            )
            with urllib.request.urlopen(request, timeout=SECONDS, context=context) as answer:
                node: dict[str, Any] = json.load(answer)
                return node
        except urllib.error.HTTPError as error:
            with error:
                raise ResourceError(f"{self._url}: {error.code}: {_message(error.read())}") from error
        except (OSError, ValueError) as error:
            raise ResourceError(f"{self._url}: {error}") from error


class FakeNode:
    """A Node object in memory; `failing` makes it refuse."""

    def __init__(self, **annotations: str) -> None:
        self.node: dict[str, Any] = {"metadata": {"annotations": dict(annotations)}, "status": {"conditions": []}}
        self.patches: list[dict[str, Any]] = []
        self.failing = False

    async def patch(
        self, conditions: tuple[Mapping[str, Any], ...] = (), annotations: Mapping[str, str | None] | None = None
    ) -> dict[str, Any]:
        """See NodeObject."""
        if self.failing:
            raise ResourceError("the API server is away")
        if patch := patch_of(conditions, annotations):
            self.patches.append(patch)
        kept = {each["type"]: each for each in self.node["status"]["conditions"]}
        kept |= {each["type"]: dict(each) for each in conditions}
        self.node["status"]["conditions"] = list(kept.values())
        for key, value in (annotations or {}).items():
            if value is None:
                self.node["metadata"]["annotations"].pop(key, None)
            else:
                self.node["metadata"]["annotations"][key] = value
        return deepcopy(self.node)


def patch_of(conditions: tuple[Mapping[str, Any], ...], annotations: Mapping[str, str | None] | None) -> dict[str, Any]:
    """The strategic merge patch: conditions are merged by their type."""
    patch: dict[str, Any] = {}
    if conditions:
        patch["status"] = {"conditions": [dict(each) for each in conditions]}
    if annotations:
        patch["metadata"] = {"annotations": dict(annotations)}
    return patch


def server_of_pod() -> str:
    """The API server, as a pod finds it. Raises ResourceError outside of a pod."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise ResourceError("there is no KUBERNETES_SERVICE_HOST: the agent runs in a pod, as the chart makes it")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:300]
