"""A PC of the office is lost in the middle of an answer: the same stream goes on, and says the same.

One model for all of them: three stages on three PCs, and a fourth on which one of these stages stands by, loaded. What
is lost is always the PC of that stage; operator and router are on others, and the store may be anywhere.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator

import pytest

from testcluster.pause import parts_of, table
from testcluster.processes import wait_until
from testcluster.serving_office import LIGHTHOUSE, Serving, question, three_stages
from testcluster.worker import is_ready

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900, func_only=True)]
ASKED = question(LIGHTHOUSE, 400, to_the_length=True)
PAUSE_S = 15.0
FIRST = 20


@pytest.fixture(scope="module")
def serving(installed_for_module: Serving) -> Iterator[Serving]:
    """Three stages and a standby."""
    installed_for_module.apply(three_stages(standbys=1))
    installed_for_module.wait_ready()
    return installed_for_module


@pytest.fixture(scope="module")
def undisturbed(serving: Serving) -> str:
    """The answer of stages that nobody disturbs."""
    return serving.answer(ASKED)


@pytest.fixture
def lost(serving: Serving) -> str:
    """The PC whose stage has a standby that is loaded, with neither operator nor router on it."""
    index = serving.wait_for_a_standby(deadline_s=240.0)
    node = serving.stage_nodes()[index]
    serving.clear(node)
    serving.wait_for_a_standby()
    (router,) = serving.pods("router")
    serving.office.reach_services_by(router["spec"]["nodeName"])
    return node


class Loss:
    """A stream that is running, and what the plan was before."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self.before = serving.stage_nodes()
        self.names = self._names()
        self.stream = serving.stream(ASKED)
        self.stream.wait_for(FIRST, deadline_s=120.0)
        self.at, self.wall = time.monotonic(), datetime.datetime.now(datetime.UTC)

    def is_survived(self, lost: str, undisturbed: str, *, pause_s: float = PAUSE_S) -> None:
        """The stream goes on with the same text after a short pause, and one stage has moved."""
        text = self.stream.join(deadline_s=300.0)
        begin, end = self.stream.longest_pause()
        first_token = self.wall + datetime.timedelta(seconds=end - self.at)
        print(f"{lost} lost after {FIRST} tokens; pause of the answer: {end - begin:.2f} s")
        parts = parts_of(self._serving, self.wall, first_token)
        if len(parts) > 1:  # else nothing of the pipeline was lost
            print(table(parts))
        assert (self.stream.finish, text) == ("length", undisturbed)
        assert end - begin < pause_s
        self.one_stage_has_moved(lost)

    def one_stage_has_moved(self, lost: str) -> None:
        """And the others are the pods that they were."""
        # The answer may be over before: of a kubelet that ended Kubernetes learns late, and the stage has served on.
        wait_until(lambda: self._serving.stage_nodes() != self.before, what="a plan without it", deadline_s=30.0)
        after = self._serving.stage_nodes()
        assert [self.before[index] for index in self.before if self.before[index] != after[index]] == [lost]
        assert len(self.names & self._names()) >= len(self.before)  # two stages, and the standby that took over

    def _names(self) -> set[str]:
        return {pod["metadata"]["labels"]["shoal.dev/name"] for pod in self._serving.pods("stage")}


def test_a_pc_without_power_does_not_end_the_stream(serving: Serving, undisturbed: str, lost: str) -> None:
    loss = Loss(serving)
    serving.office.power_off(lost)
    loss.is_survived(lost, undisturbed)
    after = serving.stage_nodes()
    # It is over before Kubernetes knows of it.
    wait_until(lambda: not is_ready(serving.office.api, lost), what="NotReady", deadline_s=60.0, poll_s=0.2)
    print(f"the node was NotReady after {time.monotonic() - loss.at:.1f} s")
    serving.office.power_on(lost)
    serving.wait_for_a_standby(lost, deadline_s=240.0)
    assert serving.stage_nodes() == after, "a PC that returns is a spare"
    assert serving.answer(ASKED) == undisturbed


def test_a_cable_that_is_cut_does_not_end_the_stream(serving: Serving, undisturbed: str, lost: str) -> None:
    loss = Loss(serving)
    serving.office.unplug(lost)
    loss.is_survived(lost, undisturbed)
    after = serving.stage_nodes()
    serving.office.plug_in_again(lost)
    # Its old stage has run on all the while; it ends now, and one that stands by is loaded in its place.
    serving.wait_for_a_standby(lost, deadline_s=240.0)
    assert serving.stage_nodes() == after


def test_killed_containers_do_not_end_the_stream(serving: Serving, undisturbed: str, lost: str) -> None:
    loss = Loss(serving)
    assert serving.office.workers[lost].kill_containers("stage") == 1
    loss.is_survived(lost, undisturbed)
    serving.wait_for_a_standby(lost, deadline_s=240.0)


def test_a_kubelet_that_ends_does_not_end_the_stream(serving: Serving, undisturbed: str, lost: str) -> None:
    """Its containers run on. Kubernetes calls the PC lost, and the standby takes over from a stage that serves."""
    loss = Loss(serving)
    serving.office.workers[lost].stop_kubelet()
    wait_until(lambda: not is_ready(serving.office.api, lost), what="NotReady", deadline_s=60.0, poll_s=0.2)
    loss.is_survived(lost, undisturbed)
    serving.office.workers[lost].start_kubelet()
    serving.wait_for_a_standby(lost, deadline_s=240.0)
    assert serving.answer(ASKED) == undisturbed
