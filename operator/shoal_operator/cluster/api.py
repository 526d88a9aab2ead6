"""The real API server, through the dynamic client of kubernetes.aio.

Objects stay plain dicts: they come from builders as such and go into the cache as such. Paths come from the closed
table of kinds, so nothing has to be discovered first.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import aiohttp
from kubernetes.aio import client as aio
from kubernetes.aio import config as aio_config
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.dynamic import DynamicClient, Resource

from shoal.errors import ResourceError
from shoal_operator.cluster.interface import Change, Listing, WatchEvent
from shoal_operator.cluster.kinds import Kind, Object, Ref, ref_of
from shoal_operator.errors import ApiNotFound, ApiUnavailable, api_error

FIELD_MANAGER: Final = "shoal-operator"
CALL_SECONDS: Final = 15.0
PAGE: Final = 500
WATCH_SECONDS: Final = 240
WATCH_SILENCE_SECONDS: Final = 90.0
"""The API server sends a bookmark about every minute; a watch that is silent for longer is dead."""


class KubernetesCluster:
    """`Cluster` over HTTPS. Use as an async context manager."""

    def __init__(self, api: aio.ApiClient) -> None:
        self._api = api
        self._client = DynamicClient(api)

    async def __aenter__(self) -> KubernetesCluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._api.close()

    async def list(self, kind: Kind, namespace: str = "", labels: Mapping[str, str] | None = None) -> Listing:
        """See `Cluster.list`; reads in pages."""
        items: list[Object] = []
        query: dict[str, str] = {"limit": str(PAGE), **_selector(labels)}
        while True:
            page = await self._call("get", kind, namespace, query=query)
            for item in page["items"]:
                # Items of a list do not say what they are.
                items.append({"apiVersion": kind.api_version, "kind": kind.kind, **item})
            going_on = page["metadata"].get("continue")
            if not going_on:
                return Listing(tuple(items), page["metadata"]["resourceVersion"])
            query["continue"] = going_on

    async def watch(
        self, kind: Kind, resource_version: str, namespace: str = "", labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[WatchEvent]:
        """See `Cluster.watch`."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(WATCH_SECONDS),
            **_selector(labels),
        }
        call = f"watch {kind.plural}"
        response = await self._request("get", kind, namespace, query=query, seconds=WATCH_SECONDS + CALL_SECONDS)
        try:
            async for line in _lines(response, call):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise api_error(call, int(status.get("code", 500)), status.get("message", "the watch failed"))
                yield WatchEvent(Change(event["type"]), event["object"])
        finally:
            response.close()

    async def get(self, ref: Ref) -> Object | None:
        """See `Cluster.get`."""
        try:
            return await self._call("get", ref.kind, ref.namespace, ref.name)
        except ApiNotFound:
            return None

    async def last_line(self, pod: Ref, container: str) -> str:
        """See `Cluster.last_line`."""
        query = {"container": container, "tailLines": "1", "limitBytes": "4096"}
        response = await self._request("get", pod.kind, pod.namespace, pod.name, subresource="log", query=query)
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return (await response.text(errors="replace")).strip()
        except (TimeoutError, aiohttp.ClientError) as error:
            raise ApiUnavailable(f"log of {pod}", f"no whole answer: {error}") from error

    async def apply(self, obj: Object, *, force: bool) -> Object:
        """See `Cluster.apply`."""
        return await self._apply(obj, force=force)

    async def apply_status(self, obj: Object) -> Object:
        """See `Cluster.apply_status`."""
        return await self._apply(obj, force=True, subresource="status")

    async def annotate(self, ref: Ref, uid: str, annotations: Mapping[str, str]) -> Object:
        """See `Cluster.annotate`."""
        return await self._call(
            "patch",
            ref.kind,
            ref.namespace,
            ref.name,
            body={"metadata": {"uid": uid, "annotations": dict(annotations)}},
            query={"fieldManager": FIELD_MANAGER},
            content_type="application/merge-patch+json",
        )

    async def create(self, obj: Object) -> Object:
        """See `Cluster.create`."""
        ref = ref_of(obj)
        query = {"fieldManager": FIELD_MANAGER}
        return await self._call("post", ref.kind, ref.namespace, body=obj, query=query)

    async def replace(self, obj: Object) -> Object:
        """See `Cluster.replace`."""
        ref = ref_of(obj)
        query = {"fieldManager": FIELD_MANAGER}
        return await self._call("put", ref.kind, ref.namespace, ref.name, body=obj, query=query)

    async def delete(self, ref: Ref, uid: str) -> None:
        """See `Cluster.delete`."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        }
        try:
            await self._call("delete", ref.kind, ref.namespace, ref.name, body=body)
        except ApiNotFound:
            return

    async def _apply(self, obj: Object, *, force: bool, subresource: str = "") -> Object:
        ref = ref_of(obj)
        query = {"fieldManager": FIELD_MANAGER, "force": str(force).lower()}
        return await self._call(
            "patch",
            ref.kind,
            ref.namespace,
            ref.name,
            subresource=subresource,
            body=obj,
            query=query,
            content_type="application/apply-patch+yaml",
        )

    async def _call(self, method: str, kind: Kind, namespace: str = "", name: str = "", **rest: Any) -> Object:
        response = await self._request(method, kind, namespace, name, **rest)
        try:
            async with asyncio.timeout(CALL_SECONDS):
                answer: Object = await response.json()
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            raise ApiUnavailable(f"{method} {kind.plural} {name}".strip(), f"no whole answer: {error}") from error
        return answer

    async def _request(
        self,
        method: str,
        kind: Kind,
        namespace: str = "",
        name: str = "",
        *,
        subresource: str = "",
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        seconds: float = CALL_SECONDS,
    ) -> aiohttp.ClientResponse:
        path = _resource(kind).path(name=name, namespace=namespace) + (f"/{subresource}" if subresource else "")
        call = " ".join(part for part in (method, kind.plural, f"{namespace}/{name}".strip("/"), subresource) if part)
        try:
            response: aiohttp.ClientResponse = await self._client.request(
                method,
                path,
                body=body,
                query_params=list((query or {}).items()),
                content_type=content_type,
                serialize=False,
                _request_timeout=seconds,
            )
        except ApiException as error:
            raise api_error(call, error.status or 0, _message(error), _retry_after(error)) from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiUnavailable(call, f"no answer: {error or type(error).__name__}") from error
        return response


async def connect() -> KubernetesCluster:
    """A cluster from the pod's ServiceAccount, or from the kubeconfig where there is none."""
    configuration = aio.Configuration()
    try:
        aio_config.load_incluster_config(client_configuration=configuration)
    except ConfigException:
        try:
            await aio_config.load_kube_config(client_configuration=configuration)
        except ConfigException as error:
            raise ResourceError(
                f"no cluster to connect to: neither a ServiceAccount nor a kubeconfig: {error}"
            ) from error
    return KubernetesCluster(aio.ApiClient(configuration))


def _resource(kind: Kind) -> Resource:
    prefix = "apis" if kind.group else "api"
    version = kind.api_version.rpartition("/")[2]
    return Resource(
        prefix=prefix,
        group=kind.group,
        api_version=version,
        kind=kind.kind,
        namespaced=kind.namespaced,
        name=kind.plural,
    )


def _selector(labels: Mapping[str, str] | None) -> dict[str, str]:
    return {"labelSelector": ",".join(f"{key}={value}" for key, value in sorted(labels.items()))} if labels else {}


async def _lines(response: aiohttp.ClientResponse, call: str) -> AsyncIterator[bytes]:
    """The lines of a stream, of any length, each within the silence that is allowed."""
    rest = b""
    while True:
        try:
            async with asyncio.timeout(WATCH_SILENCE_SECONDS):
                chunk = await response.content.readany()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiUnavailable(call, f"the stream broke off: {error or 'silent for too long'}") from error
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


def _message(error: ApiException) -> str:
    try:
        return str(json.loads(error.body or "")["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason or error.body or "refused")[:400]


def _retry_after(error: ApiException) -> float | None:
    try:
        return float((error.headers or {})["Retry-After"])
    except (TypeError, ValueError, KeyError):
        return None
