"""The Lease: one leader at a time, whatever the clocks and the API server do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shoal_operator.cluster.fake import Call, FakeCluster
from shoal_operator.cluster.kinds import LEASE, Ref
from shoal_operator.errors import ApiConflict, LeadershipLost, api_error
from shoal_operator.leader import Leader

REF = Ref(LEASE, "shoal", "shoal-operator")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def candidate(cluster: FakeCluster, name: str, clock: Any = None, seconds: float = 15) -> Leader:
    return Leader(cluster, "shoal", name, seconds, clock=clock)


async def test_the_first_one_leads_and_the_second_waits():
    cluster, clock = FakeCluster(), Clock()
    first, second = candidate(cluster, "one", clock), candidate(cluster, "two", clock)
    assert await first.try_once()
    assert not await second.try_once()
    clock.now += 14
    assert await first.try_once()
    clock.now += 14
    assert not await second.try_once()


async def test_case_95_a_leader_that_is_silent_is_followed_after_its_time_and_never_before():
    cluster, clock = FakeCluster(), Clock()
    first, second = candidate(cluster, "one", clock), candidate(cluster, "two", clock)
    await first.try_once()
    assert not await second.try_once()
    clock.now += 14.9
    assert not await second.try_once()
    clock.now += 0.2
    assert await second.try_once()
    assert not await first.try_once()
    assert not first.leading
    assert cluster.objects[REF]["spec"]["leaseTransitions"] == 1


async def test_only_our_own_clock_counts():
    cluster, clock = FakeCluster(), Clock()
    await candidate(cluster, "one", clock).try_once()
    lease = cluster.objects[REF]
    cluster.put({**lease, "spec": {**lease["spec"], "renewTime": "1999-01-01T00:00:00.000000Z"}})
    assert not await candidate(cluster, "two", clock).try_once()


async def test_of_two_that_try_at_once_one_is_refused():
    cluster, clock = FakeCluster(), Clock()
    first, second = candidate(cluster, "one", clock), candidate(cluster, "two", clock)
    read = cluster.get

    async def slow_get(ref: Ref) -> Any:
        found = await read(ref)
        await first.try_once()
        return found

    cluster.get = slow_get  # type: ignore[method-assign]

    async def quick_get(ref: Ref) -> Any:
        return await read(ref)

    first._cluster = FakeClusterView(cluster, quick_get)  # type: ignore[assignment]
    with pytest.raises(ApiConflict):
        await second.try_once()
    assert not second.leading
    assert cluster.objects[REF]["spec"]["holderIdentity"] == "one"


class FakeClusterView:
    """The same cluster with another `get`."""

    def __init__(self, cluster: FakeCluster, get: Any) -> None:
        self.get = get
        self.create = cluster.create
        self.replace = cluster.replace


async def test_release_lets_a_successor_in_at_once():
    cluster, clock = FakeCluster(), Clock()
    first, second = candidate(cluster, "one", clock), candidate(cluster, "two", clock)
    await first.try_once()
    assert not await second.try_once()
    await first.release()
    assert await second.try_once()


async def test_a_leader_that_cannot_renew_stops_before_another_may_start():
    cluster = FakeCluster()
    leader = candidate(cluster, "one", seconds=0.3)
    await leader.acquire()

    def broken(call: Call) -> None:
        raise api_error("get lease", 503, "injected")

    cluster.fault = broken
    start = asyncio.get_running_loop().time()
    with pytest.raises(LeadershipLost):
        await leader.hold()
    assert asyncio.get_running_loop().time() - start < 0.3
    assert not leader.leading


async def test_an_api_server_that_hangs_ends_leadership_too():
    cluster = FakeCluster()
    leader = candidate(cluster, "one", seconds=0.3)
    await leader.acquire()

    async def hang(ref: Ref) -> Any:
        await asyncio.Event().wait()

    cluster.get = hang  # type: ignore[method-assign]
    async with asyncio.timeout(5):
        with pytest.raises(LeadershipLost):
            await leader.hold()


async def test_acquire_goes_on_through_errors():
    cluster = FakeCluster()
    leader = candidate(cluster, "one", seconds=0.05)

    def first_three(call: Call) -> None:
        if call.number <= 3:
            raise api_error("get lease", 500, "injected")

    cluster.fault = first_three
    async with asyncio.timeout(5):
        await leader.acquire()
    assert leader.leading
