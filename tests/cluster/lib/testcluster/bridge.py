"""The office's cable: a bridge that all PCs are plugged into, with this machine at its address 10.250.0.1.

    10.250.0.0/24      the office: this machine .1, PC number n at .(10+n)
    10.244.n.0/24      pods of PC n
    10.96.0.0/16       Services; this machine reaches them by way of one of the PCs

Nothing here forwards: pods reach each other, the API server and what this machine serves on the bridge, and nothing
beyond it. One office at a time is on a machine, which a lock sees to.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from testcluster.binaries import cache_root
from testcluster.run import RunFailed, run

NAME: Final = "shoaltest0"
ADDRESS: Final = "10.250.0.1"
PODS: Final = "10.244.0.0/16"
SERVICES: Final = "10.96.0.0/16"


class OfficeIsOpen(Exception):
    """Another test run has an office on this machine."""


def pc_address(number: int) -> str:
    """The address of a PC on the bridge."""
    return f"10.250.0.{10 + number}"


def pods_of(number: int) -> str:
    """The network of a PC's pods."""
    return f"10.244.{number}.0/24"


def cable(number: int) -> str:
    """The bridge's end of a PC's cable."""
    return f"shoaltest-pc{number}"


@contextmanager
def bridge() -> Iterator[None]:
    """The bridge, for as long as it is used. What a killed run left is taken away first."""
    cache_root().mkdir(parents=True, exist_ok=True)
    with (cache_root() / "office.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OfficeIsOpen("another test run has its cluster on this machine: wait for its end") from None
        _remove()
        run("ip", "link", "add", NAME, "type", "bridge")
        try:
            run("ip", "addr", "add", f"{ADDRESS}/24", "dev", NAME)
            run("ip", "link", "set", NAME, "up")
            yield
        finally:
            _remove()


def give_routes(number: int) -> None:
    """The way to a PC's pods: the kernel forgets it when the cable is cut."""
    run("ip", "route", "replace", pods_of(number), "via", pc_address(number), "dev", NAME)


def reach_services_by(number: int) -> None:
    """Send what this machine asks of Services to one PC, whose kube-proxy chooses a pod."""
    run("ip", "route", "replace", SERVICES, "via", pc_address(number), "dev", NAME)


def _remove() -> None:
    """Routes over the bridge go with it."""
    try:
        run("ip", "link", "show", NAME)
    except RunFailed:
        return
    run("ip", "link", "delete", NAME)
