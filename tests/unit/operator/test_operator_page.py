"""The operator's page: what it shows of statuses, who may see it, and that it loads nothing from elsewhere."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from shoal.api_keys import ApiKeys
from shoal.node_use import CONDITION
from shoal.page import MOST_WATCHERS, page_files
from shoal_operator.cluster.kinds import NODE, SHARDED_MODEL, Ref
from shoal_operator.watch.picture import models_of
from shoal_operator.watch.serve import Page, serve_page


@asynccontextmanager
async def served(look, keys=None):
    page = Page(look, keys, tick_seconds=0.01)
    runner = await serve_page(page, 0, everywhere=keys is not None)
    try:
        # Port 0 is another one for each family of addresses.
        (port,) = [address[1] for address in runner.addresses if "." in address[0]]
        yield f"http://127.0.0.1:{port}", runner
    finally:
        await runner.cleanup()


async def first_event(session, url, **headers):
    async with session.get(f"{url}/watch/events", headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/event-stream"
        event = await answer.content.readuntil(b"\n\n")
        assert event.startswith(b"event: models\ndata: ")
        return json.loads(event.partition(b"data: ")[2])


async def test_models_are_shown_with_their_stages_and_conditions(office):
    await office.settle()
    office.cluster.put(
        {
            **office.model(),
            "metadata": {**office.model()["metadata"], "name": "new-one", "uid": "2"},
            "status": {},
        }
    )
    used = office.stages()[0][1]
    node = office.cluster.objects[Ref(NODE, "", used)]
    said = {"type": CONDITION, "status": "True", "reason": "UserActive"}
    node["status"]["conditions"].append(said)
    shown = models_of(office.cluster.of_kind(SHARDED_MODEL), office.cluster.of_kind(NODE))
    fresh, model = shown
    assert (fresh["name"], fresh["state"], fresh["reason"], fresh["pipelines"]) == ("new-one", "down", "New", [])
    assert (model["name"], model["state"], model["reason"]) == ("llama-8b", "ready", "Serving")
    (pipeline,) = model["pipelines"]
    assert [stage["node"] for stage in pipeline["stages"]] == [node for _, node, _ in office.stages()]
    assert [stage["inUse"] for stage in pipeline["stages"]] == ["UserActive", ""]
    assert all(stage["ready"] and stage["memory"] > 0 for stage in pipeline["stages"])
    assert {each["type"] for each in model["conditions"]} >= {"Ready", "Planned", "Degraded"}
    assert model["page"] == ""
    json.dumps(shown)


async def test_degraded_off_and_lost_are_told_apart(office):
    await office.settle()

    def state() -> str:
        (model,) = models_of(office.cluster.of_kind(SHARDED_MODEL), ())
        return str(model["state"])

    lost = office.stages()[1][1]
    office.workloads.lose(lost, office.now)
    await office.reconcile()
    assert state() == "down"
    office.workloads.bring_back(lost, office.now)
    office.apply(stages={"count": 2}, replicas=0)
    await office.settle()
    assert state() == "off"


async def test_a_model_with_an_ingress_has_a_link_to_its_page(office):
    office.apply(router={"ingress": {"host": "llm.office.example", "tlsSecretName": "tls"}})
    await office.settle()
    (model,) = models_of(office.cluster.of_kind(SHARDED_MODEL), ())
    assert model["page"] == "https://llm.office.example/"


async def test_the_page_is_served_whole_and_loads_nothing_from_elsewhere():
    async with served(list) as (url, _), ClientSession() as session:
        async with session.get(url) as page:
            assert page.status == 200
            assert page.headers["Content-Type"].startswith("text/html")
            assert "default-src 'none'" in page.headers["Content-Security-Policy"]
            etag = page.headers["ETag"]
        async with session.get(url, headers={"If-None-Match": etag}) as again:
            assert again.status == 304
        files = page_files("shoal_operator")
        for name, file in files.items():
            async with session.get(f"{url}/page/{name}") as part:
                assert part.status == 200, name
                assert await part.read() == file.body
            text = file.body.decode()
            assert not re.search(r"(src|href|import|from|url\()\s*=?\s*[\"'(]?https?://", text), name
            assert " style=" not in text or name.endswith(".js"), name
        texts = "".join(file.body.decode() for file in files.values())
        assert set(re.findall(r"[\"'](?:/page/|\./)([\w.]+)[\"']", texts)) <= files.keys()
        async with session.get(f"{url}/page/none.js") as nothing:
            assert nothing.status == 404


async def test_events_tell_what_changes():
    shown = [{"name": "a"}]
    async with (
        asyncio.timeout(10),
        served(lambda: shown) as (url, _),
        ClientSession() as session,
        session.get(f"{url}/watch/events") as answer,
    ):
        assert json.loads((await answer.content.readuntil(b"\n\n")).partition(b"data: ")[2]) == shown
        shown = [{"name": "a"}, {"name": "b"}]
        assert json.loads((await answer.content.readuntil(b"\n\n")).partition(b"data: ")[2]) == shown


async def test_without_keys_it_is_open_to_its_own_pod_alone():
    async with served(list) as (_, runner):
        assert runner.addresses[0][0] == "127.0.0.1"


async def test_with_keys_the_files_are_open_and_the_events_are_not(tmp_path: Path):
    path = tmp_path / "keys"
    path.write_text("open-sesame\n")
    keys = ApiKeys(path, lambda: 0.0)
    async with served(lambda: [{"name": "a"}], keys) as (url, runner), ClientSession() as session:
        assert runner.addresses[0][0] not in ("127.0.0.1", "::1")
        async with session.get(url) as page:
            assert page.status == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic open-sesame"}):
            async with session.get(f"{url}/watch/events", headers=headers) as refused:
                assert refused.status == 401
                assert "API key" in (await refused.json())["error"]["message"]
        assert await first_event(session, url, Authorization="Bearer open-sesame") == [{"name": "a"}]


async def test_too_many_watchers_are_refused_and_those_who_leave_make_room():
    async with served(list) as (url, _), ClientSession() as session, asyncio.timeout(20):
        watching = [await session.get(f"{url}/watch/events") for _ in range(MOST_WATCHERS)]
        async with session.get(f"{url}/watch/events") as refused:
            assert refused.status == 429
        for each in watching:
            each.close()
        while True:
            async with session.get(f"{url}/watch/events") as answer:
                if answer.status == 200:
                    break


@pytest.mark.parametrize("name", ["main.js", "models.js"])
def test_the_pages_of_router_and_operator_share_their_modules(name):
    operator, router = page_files("shoal_operator"), page_files("shoal_router")
    assert operator["stream.js"] == router["stream.js"]
    assert name in operator
    assert isinstance(Page(list).app(), web.Application)
