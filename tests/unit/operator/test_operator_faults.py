"""The operator may die, and the API server may fail, between any two calls: the same objects come out of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from shoal_operator.cluster.fake import Call
from shoal_operator.cluster.kinds import EVENT, JOB, POD, SECRET, Ref
from shoal_operator.errors import OperatorError, api_error


class Died(BaseException):
    """The process is gone: nothing of the operator may catch it."""


def die(call: Call) -> None:
    raise Died


def answer(status: int) -> Callable[[Call], None]:
    def fail(call: Call) -> None:
        raise api_error(f"{call.verb} {call.ref}", status, "injected", retry_after=1.0 if status == 429 else None)

    return fail


FAULTS = {
    "died": die,
    "409": answer(409),
    "403": answer(403),
    "429": answer(429),
    "500": answer(500),
    "timeout": answer(0),
}


def what_exists(office: Any) -> dict[Ref, str]:
    """Everything that was made, without what differs from run to run: uids, versions, times, keys and events."""
    kept = {}
    for ref, obj in office.cluster.objects.items():
        if ref.kind in (EVENT, POD) or ref.namespace != "ai":
            continue
        plain = json.loads(json.dumps(obj))
        metadata = plain["metadata"]
        plain["metadata"] = {key: metadata[key] for key in ("name", "labels", "annotations") if key in metadata}
        if ref.kind == SECRET:
            plain["data"] = sorted(plain["data"])
            plain["metadata"]["annotations"] = {}
        if ref.kind == JOB:
            plain.pop("status", None)
        kept[ref] = json.dumps(plain, sort_keys=True)
    return kept


async def run(office: Any, rounds: int = 40) -> None:
    """Reconcile until it settles; an operator that died starts afresh, one that failed tries again."""
    quiet = 0
    for _ in range(rounds):
        before = len(office.cluster.writes)
        try:
            await office.reconcile()
        except Died:
            office.new_operator()
        except OperatorError:
            quiet = -1
        office.workloads.step()
        quiet = quiet + 1 if len(office.cluster.writes) == before else 0
        if quiet >= 2:
            return
    raise AssertionError("it does not settle")


def office_of(make_office, make_node, make_model) -> Any:
    office = make_office(*(make_node(f"pc-0{number}", "14Gi") for number in range(1, 5)))
    office.cluster.put(make_model(stages={"count": 2}))
    return office


async def check_every_call(make: Callable[[], Any], kinds: list[str], happened: bool) -> None:
    """A fault at each call in turn; of several kinds each call meets one."""
    calm = make()
    await run(calm)
    wanted, calls = what_exists(calm), calm.cluster.calls
    assert calls > 25
    for number in range(1, calls + 1):
        office = make()
        kind = kinds[number % len(kinds)]
        hit: list[Call] = []

        def once(call: Call, number: int = number, kind: str = kind, hit: list[Call] = hit) -> None:
            if call.number == number and call.happened == happened and not hit:
                hit.append(call)
                FAULTS[kind](call)

        office.cluster.fault = once
        await run(office)
        assert what_exists(office) == wanted, f"{kind} at call {number}: {hit}"
        assert office.condition("Ready")["status"] == "True"


@pytest.fixture
def make(make_office, make_node, make_model) -> Callable[[], Any]:
    return lambda: office_of(make_office, make_node, make_model)


async def test_an_operator_that_dies_between_any_two_calls_changes_nothing_in_the_end(make):
    """Before each call, that is after the one before it: what the operator had in mind is gone either way."""
    await check_every_call(make, ["died"], happened=False)


@pytest.mark.parametrize("happened", [False, True], ids=["before", "after"])
async def test_an_api_error_at_any_call_changes_nothing_in_the_end(make, happened):
    await check_every_call(make, ["409", "403", "429", "500", "timeout"], happened)


@pytest.mark.slow
@pytest.mark.parametrize("happened", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", FAULTS)
async def test_every_fault_at_every_call(make, kind, happened):
    await check_every_call(make, [kind], happened)


async def test_an_api_server_that_fails_every_other_call(make):
    calm, office = make(), make()
    await run(calm)

    def every_other(call: Call) -> None:
        if call.number % 2 and not call.happened:
            raise api_error("call", 503, "injected")

    office.cluster.fault = every_other
    for _ in range(60):
        with suppress(OperatorError):
            await office.reconcile()
        office.workloads.step()
    office.cluster.fault = lambda _: None
    await run(office)
    assert what_exists(office) == what_exists(calm)


async def test_what_is_forbidden_is_said(make):
    office = make()

    def no_jobs(call: Call) -> None:
        if call.ref.kind == JOB and call.verb == "patch":
            raise api_error("patch jobs ai/x", 403, 'jobs.batch "x" is forbidden: User "shoal" cannot patch')

    office.cluster.fault = no_jobs
    with pytest.raises(OperatorError):
        await office.reconcile()
    assert office.condition("Degraded")["reason"] == "Forbidden"
    assert "cannot patch" in office.condition("Degraded")["message"]
    office.cluster.fault = lambda _: None
    await run(office)
    assert office.condition("Ready")["status"] == "True"
    assert office.condition("Degraded")["status"] == "False"
