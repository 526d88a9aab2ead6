"""A stage that is killed for its memory ends alone, and the condition says what to do."""

from __future__ import annotations

import pytest

from testcluster.api import Manifest
from testcluster.processes import wait_until
from testcluster.serving_office import LIGHTHOUSE, Serving, question, three_stages

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800, func_only=True)]
ASKED = question(LIGHTHOUSE, 400)


def restarts(serving: Serving) -> dict[str, int]:
    """How often each container of stages and router was started anew."""
    pods = [*serving.pods("stage"), *serving.pods("router")]
    return {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods}


def take_all_room(serving: Serving, pod: Manifest) -> None:
    """Fill the container up to its limit, in pieces so small that the stage is what the kernel finds to kill.

    It ends with the container: that is how its command learns that it has done what it should.
    """
    program = (
        "import os, time\n"
        "for number in range(200):\n"
        "    if os.fork() == 0:\n"
        "        held = b'x' * (16 << 20)\n"
        "        time.sleep(60)\n"
        "        os._exit(0)\n"
        "    time.sleep(0.05)\n"
    )
    name = pod["metadata"]["name"]
    said = serving.kubectl(
        "exec", "--namespace", serving.namespace, name, "--container", "stage", "--", "python", "-c", program,
        check=False,
    )  # fmt: skip
    print(f"{name} was filled: {said.strip()}")


def test_a_stage_without_memory_is_killed_alone(installed: Serving) -> None:
    installed.apply(three_stages())
    installed.wait_ready()
    expected = installed.answer(ASKED)
    before = restarts(installed)
    victim = installed.pods("stage")[0]
    stream = installed.stream(ASKED)
    stream.wait_for(10, deadline_s=120.0)
    take_all_room(installed, victim)

    def said() -> str:
        condition = installed.condition("StagesReady")
        return str(condition["message"]) if condition["reason"] == "OOMKilled" else ""

    message = wait_until(said, what="a condition that says OOMKilled", deadline_s=120.0, poll_s=0.1)
    print(message)
    assert "MiB" in message
    assert stream.join(deadline_s=240.0) == expected
    installed.wait_ready()
    after = restarts(installed)
    assert {name: after[name] - before[name] for name in before} == {
        name: int(name == victim["metadata"]["name"]) for name in before
    }
