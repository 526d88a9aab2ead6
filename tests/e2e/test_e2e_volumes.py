"""A model directory that the PCs have already: no Job compiles, no store serves, no init container pulls."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import yaml

from testcluster.serving_office import ROOT, Serving
from testcluster.streaming import Stream

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]
ASKED: dict[str, Any] = {
    "model": "smollm2",
    "messages": [{"role": "user", "content": "Name three animals that live in the sea."}],
    "temperature": 0,
    "max_tokens": 32,
}
FOLDER = "/var/lib/models/smollm2"


def test_a_host_path_serves_as_a_source_does(installed: Serving) -> None:
    example = yaml.safe_load((ROOT / "examples/smollm2.yaml").read_text())
    installed.apply(example)
    installed.wait_ready()
    expected = Stream().start(installed.client, **ASKED).join(deadline_s=120.0)
    digest = installed.model()["status"]["modelDigest"]
    (store,) = installed.pods("store")
    machines = {name: worker.machine for name, worker in installed.office.workers.items()}
    kept = machines[store["spec"]["nodeName"]].path("/var/lib/test-local")
    (compiled,) = kept.glob(f"*/models/{digest}")
    for machine in machines.values():
        shutil.copytree(compiled, machine.path(FOLDER))
    installed.kubectl("delete", "--namespace", installed.namespace, "shardedmodel/smollm2", "--timeout=60s")
    installed.wait_for_nothing()

    example["spec"]["model"] = {"volume": {"hostPath": {"path": FOLDER}}, "servedNames": ["smollm2"]}
    installed.apply(example)
    installed.wait_ready()
    assert installed.pods("store") == []
    assert Stream().start(installed.client, **ASKED).join(deadline_s=120.0) == expected
    assert installed.model()["status"]["modelDigest"] == digest
