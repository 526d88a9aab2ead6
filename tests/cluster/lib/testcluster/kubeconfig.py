"""Kubeconfig files: who a client is, and where the API server is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testcluster.certificates import KeyPair


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """A written kubeconfig file, and what it says. `user` is the name that the audit log has."""

    path: Path
    server: str
    authority: Path
    user: str
    token: str | None = None
    client: KeyPair | None = None

    @classmethod
    def write(
        cls,
        path: Path,
        *,
        server: str,
        authority: Path,
        user: str,
        token: str | None = None,
        client: KeyPair | None = None,
        namespace: str = "default",
    ) -> Kubeconfig:
        """Write the file for a token or a client certificate; only its owner can read it."""
        credentials: dict[str, Any] = {}
        if token is not None:
            credentials["token"] = token
        if client is not None:
            credentials["client-certificate"] = str(client.certificate)
            credentials["client-key"] = str(client.key)
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": str(authority)}}],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user, "namespace": namespace}}],
            "current-context": "test",
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(document, indent=2))
        return cls(path=path, server=server, authority=authority, user=user, token=token, client=client)
