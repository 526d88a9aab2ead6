"""A thin client of the API server for tests: plain objects in, plain objects or the server's own refusal out.

The tests look at what the API server answers to the byte (codes, messages, warnings), which a comfortable client hides;
and they must not share code with the client that the operator uses.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from typing import Any, Final, Self

import httpx

from testcluster.kubeconfig import Kubeconfig

Manifest = dict[str, Any]
_TIMEOUT_S: Final = 60.0
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
FIELD_MANAGER: Final = "shoal-test"


class Refused(Exception):
    """The API server refused a request: its code, reason and message."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message


class Api:
    """The API server as one user. Use it as a context manager, or close it."""

    def __init__(self, kubeconfig: Kubeconfig, *, timeout_s: float = _TIMEOUT_S) -> None:
        context = ssl.create_default_context(cafile=str(kubeconfig.authority))
        if kubeconfig.client is not None:
            context.load_cert_chain(kubeconfig.client.certificate, kubeconfig.client.key)
        headers = {"Authorization": f"Bearer {kubeconfig.token}"} if kubeconfig.token else {}
        self.kubeconfig = kubeconfig
        # trust_env=False: a proxy of the environment has no business on loopback.
        self._http = httpx.Client(
            base_url=kubeconfig.server, verify=context, headers=headers, timeout=timeout_s, trust_env=False
        )
        self._resources: dict[str, dict[str, Manifest]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def is_ready(self) -> bool:
        """Whether the API server answers and says that it is ready."""
        try:
            return self._http.get("/readyz").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def request(self, method: str, path: str, **options: Any) -> Manifest:
        """One request; returns the object in the answer, raises Refused."""
        answer = self._http.request(method, path, **options)
        document: Manifest = answer.json() if "json" in answer.headers.get("content-type", "") else {}
        if answer.is_success:
            return document
        raise Refused(answer.status_code, document.get("reason", ""), document.get("message", answer.text))

    def path(self, api_version: str, resource: str, name: str = "", *, namespace: str | None = None) -> str:
        """The path of a collection or of an object; a resource may carry a subresource (`pods/status`)."""
        plural, _, subresource = resource.partition("/")
        root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
        parts = [root, *(["namespaces", namespace] if namespace else []), plural, name, subresource]
        return "/".join(part for part in parts if part)

    def get(self, api_version: str, resource: str, name: str, *, namespace: str | None = None) -> Manifest:
        """One object."""
        return self.request("GET", self.path(api_version, resource, name, namespace=namespace))

    def find(self, api_version: str, resource: str, name: str, *, namespace: str | None = None) -> Manifest | None:
        """One object, or None when there is none."""
        try:
            return self.get(api_version, resource, name, namespace=namespace)
        except Refused as refusal:
            if refusal.code == httpx.codes.NOT_FOUND:
                return None
            raise

    def list(
        self, api_version: str, resource: str, *, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> list[Manifest]:
        """The objects of a collection."""
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        params = {name: value for name, value in selectors.items() if value}
        items: list[Manifest] = self.request(
            "GET", self.path(api_version, resource, namespace=namespace), params=params
        )["items"]
        return items

    def create(self, manifest: Manifest, *, namespace: str | None = None, dry_run: bool = False) -> Manifest:
        """Create an object as it is written; unknown fields are refused."""
        params = {"fieldValidation": "Strict", "fieldManager": FIELD_MANAGER, **_dry_run(dry_run)}
        return self.request("POST", self.path_of(manifest, namespace), json=manifest, params=params)

    def apply(self, manifest: Manifest, *, namespace: str | None = None, dry_run: bool = False) -> Manifest:
        """Server-side apply of an object; unknown fields are refused."""
        params = {"fieldValidation": "Strict", "fieldManager": FIELD_MANAGER, "force": "true", **_dry_run(dry_run)}
        path = f"{self.path_of(manifest, namespace)}/{manifest['metadata']['name']}"
        return self.request("PATCH", path, json=manifest, params=params, headers={"Content-Type": _APPLY})

    def patch(
        self, api_version: str, resource: str, name: str, change: Manifest, *, namespace: str | None = None
    ) -> Manifest:
        """Merge a change into an object, or into its subresource (`nodes/status`)."""
        path = self.path(api_version, resource, name, namespace=namespace)
        return self.request("PATCH", path, json=change, headers={"Content-Type": _MERGE})

    def delete(
        self,
        api_version: str,
        resource: str,
        name: str,
        *,
        namespace: str | None = None,
        grace_s: int | None = None,
    ) -> None:
        """Delete an object if it is there; what it owns goes in the background."""
        path = self.path(api_version, resource, name, namespace=namespace)
        options: Manifest = {"propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            self.request("DELETE", path, json=options)
        except Refused as refusal:
            if refusal.code != httpx.codes.NOT_FOUND:
                raise

    def watch(self, api_version: str, resource: str, *, deadline_s: float) -> Iterator[tuple[str, Manifest]]:
        """Events (type, object) of a collection, those for what exists first, until the deadline."""
        params = {"watch": "true", "timeoutSeconds": str(max(1, int(deadline_s)))}
        timeout = httpx.Timeout(_TIMEOUT_S, read=deadline_s + _TIMEOUT_S)
        with self._http.stream("GET", self.path(api_version, resource), params=params, timeout=timeout) as answer:
            for line in answer.iter_lines():
                event = json.loads(line)
                yield event["type"], event["object"]

    def path_of(self, manifest: Manifest, namespace: str | None = None) -> str:
        """The path of the collection that an object belongs to, as the API server's discovery says."""
        api_version, kind = manifest["apiVersion"], manifest["kind"]
        resource = self._resource(api_version, kind)
        where = manifest["metadata"].get("namespace") or namespace or "default"
        return self.path(api_version, resource["name"], namespace=where if resource["namespaced"] else None)

    def _resource(self, api_version: str, kind: str) -> Manifest:
        known = self._resources.get(api_version, {})
        if kind not in known:
            # Asked anew when the kind is unknown: a CRD may have been added since.
            listed = self.request("GET", self.path(api_version, ""))["resources"]
            known = {each["kind"]: each for each in listed if "/" not in each["name"]}
            self._resources[api_version] = known
        if kind not in known:
            raise Refused(httpx.codes.NOT_FOUND, "NotFound", f"the API server knows no kind {kind} in {api_version}")
        return known[kind]


def _dry_run(wanted: bool) -> dict[str, str]:
    return {"dryRun": "All"} if wanted else {}
