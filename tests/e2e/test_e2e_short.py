"""The short form: from helm install to an answer, a PC whose containers are killed in mid-stream, and back to nothing.

Minutes instead of the better part of an hour, for whoever changes something: `make e2e-short`.
"""

from __future__ import annotations

from typing import Any

import pytest

from testcluster.serving_office import Serving, three_stages
from testcluster.streaming import Stream

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900, func_only=True)]
ASKED: dict[str, Any] = {
    "model": "smollm2",
    "messages": [{"role": "user", "content": "Tell a long story about a lighthouse."}],
    "temperature": 0,
    "max_tokens": 160,
    "extra_body": {"ignore_eos": True},
}


def test_an_answer_outlives_the_containers_of_a_pc(installed: Serving) -> None:
    installed.apply(three_stages())
    installed.wait_ready()
    undisturbed = Stream().start(installed.client, **ASKED).join(deadline_s=180.0)
    stream = Stream().start(installed.client, **ASKED)
    stream.wait_for(20, deadline_s=60.0)
    node = installed.stage_nodes()[1]
    assert installed.office.workers[node].kill_containers("stage") == 1
    assert stream.join(deadline_s=180.0) == undisturbed
    assert stream.finish == "length"
    begin, end = stream.longest_pause()
    print(f"the containers of {node} were killed; pause of the answer: {end - begin:.2f} s")
    installed.wait_ready()
    assert installed.stage_nodes()[1] == node, "its kubelet starts it anew"
