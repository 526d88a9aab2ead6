"""The gateway's routes in a cluster: from the ShardedModels, and in step with them."""

from __future__ import annotations

import asyncio

import pytest

from shoal.errors import ResourceError
from shoal_cli import gateway
from shoal_cli.gateway import ClusterRoutes, table_of, watched
from shoal_operator.cluster.cache import Cache
from shoal_operator.cluster.fake import FakeCluster
from shoal_operator.cluster.kinds import SHARDED_MODEL, Ref
from shoaltest.waiting import until


def model(name: str, namespace: str = "ai", created: str = "2026-01-01T00:00:00Z", names=(), port=8000):
    spec = {"model": {"volume": {"persistentVolumeClaim": {"claimName": "x"}}}, "router": {"service": {"port": port}}}
    if names:
        spec["model"]["servedNames"] = list(names)
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": created}
    return {"apiVersion": "shoal.dev/v1alpha1", "kind": "ShardedModel", "metadata": metadata, "spec": spec}


def test_names_lead_to_services() -> None:
    table = table_of([model("a"), model("b", names=("x", "y"), port=80)], "example.org")
    assert table == {
        "a": "http://a.ai.svc.example.org:8000",
        "x": "http://b.ai.svc.example.org:80",
        "y": "http://b.ai.svc.example.org:80",
    }


def test_a_router_with_a_certificate_is_called_over_https() -> None:
    body = model("a")
    body["spec"]["router"]["tlsSecretName"] = "api-tls"
    assert table_of([body], "d") == {"a": "https://a.ai.svc.d:8000"}


def test_the_older_has_the_name_and_what_is_malformed_is_left_out(caplog) -> None:
    broken = model("broken") | {"spec": {}}
    table = table_of(
        [model("new", created="2026-02-01T00:00:00Z", names=("x",)), model("old", names=("x",)), broken], "d"
    )
    assert table == {"x": "http://old.ai.svc.d:8000"}
    assert {record.message for record in caplog.records} == {"a name is served twice", "a ShardedModel is left out"}


async def test_routes_follow_the_cluster() -> None:
    cluster, cache = FakeCluster(model("a"), model("b", namespace="other")), Cache()
    routes = ClusterRoutes(cache, "d")
    async with watched(cluster, cache, ("ai",)):
        assert list(routes.table()) == ["a"]
        cluster.put(model("c"))
        await until(lambda: list(routes.table()) == ["a", "c"])
        cluster.remove(Ref(SHARDED_MODEL, "ai", "a"))
        await until(lambda: list(routes.table()) == ["c"])


async def test_who_may_not_list_is_told(monkeypatch) -> None:
    monkeypatch.setattr(gateway, "SYNC_SECONDS", 0.01)
    cluster = FakeCluster()

    async def never(*_args, **_more):
        await asyncio.Event().wait()

    monkeypatch.setattr(cluster, "list", never)
    with pytest.raises(ResourceError, match="list and watch"):
        async with watched(cluster, Cache(), ()):
            pass
