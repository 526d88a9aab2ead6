"""A model that serves, changed and taken away: more of it, a newer chart, strangers at its stages, nothing left."""

from __future__ import annotations

import pytest

from testcluster.processes import wait_until
from testcluster.serving_office import SEA, SYSTEM, Serving, example, question

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900, func_only=True)]
ASKED = question(SEA)


def test_more_pipelines_a_newer_chart_and_back_to_nothing(installed: Serving) -> None:
    installed.apply(example())
    installed.wait_ready()
    expected = installed.answer(ASKED)
    strangers_reach_no_stage(installed)

    installed.kubectl("scale", "--namespace", installed.namespace, "shardedmodel/smollm2", "--replicas=2")
    installed.wait_ready(replicas=2)
    assert len({pod["spec"]["nodeName"] for pod in installed.pods("stage")}) == 4

    before = {pod["metadata"]["uid"] for role in ("stage", "router") for pod in installed.pods(role)}
    installed.install(operator={"storeSize": "2Gi", "logLevel": "DEBUG"})
    assert "Succeeded" in installed.helm("test", "shoal", "--namespace", SYSTEM, "--timeout", "90s")
    assert {pod["metadata"]["uid"] for role in ("stage", "router") for pod in installed.pods(role)} == before
    assert installed.answer(ASKED) == expected

    # The operator first: without one everything serves on.
    installed.uninstall()
    assert installed.answer(ASKED) == expected
    installed.kubectl("delete", "--namespace", installed.namespace, "shardedmodel/smollm2", "--timeout=60s")
    installed.wait_for_nothing()
    wait_until(
        lambda: not installed.office.api.list("v1", "persistentvolumes"), what="the end of the volumes", deadline_s=60.0
    )


def strangers_reach_no_stage(serving: Serving) -> None:
    """The same program in two pods: one with the labels of the model's router, one without.

    It knocks for some seconds: kube-router learns of a pod a moment after it has started, and refuses until then.
    """
    (address, *_) = [pod["status"]["podIP"] for pod in serving.pods("stage")]
    knock = (
        "import socket, sys, time\n"
        "for attempt in range(10):\n"
        f"    try: socket.create_connection(({address!r}, 50051), 2); sys.exit()\n"
        "    except OSError: pass\n"
        "    time.sleep(1)\n"
        "sys.exit('refused')\n"
    )
    assert serving.in_a_pod("stranger", knock, {"app": "stranger"})[0] is False
    assert serving.in_a_pod("friend", knock, {"shoal.dev/model": "smollm2", "shoal.dev/role": "router"})[0] is True
