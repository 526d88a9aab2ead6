"""A model directory that is there already: on every PC, or on one PC's volume. Nothing compiles, serves it or pulls it.

An OCI image as a volume is not among them: it takes containerd 2.1, and Kubernetes 1.34 with a feature gate.
"""

from __future__ import annotations

import json
import shutil

import pytest

from testcluster.serving_office import SEA, Serving, exact_example, question

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900, func_only=True)]
ASKED = question(SEA)
FOLDER = "/var/lib/models/smollm2"
OWNER = "pc-3"


def take_away(serving: Serving) -> None:
    serving.kubectl("delete", "--namespace", serving.namespace, "shardedmodel/smollm2", "--timeout=60s")
    serving.wait_for_nothing()


def test_volumes_serve_as_a_source_does(installed: Serving) -> None:
    installed.apply(exact_example())
    installed.wait_ready()
    expected = installed.answer(ASKED)
    digest = installed.model()["status"]["modelDigest"]
    (manifest,) = installed.files_of("smollm2-store").glob("models/*/manifest.json")
    for worker in installed.office.workers.values():
        shutil.copytree(manifest.parent, worker.machine.path(FOLDER))
    take_away(installed)

    body = exact_example(model={"volume": {"hostPath": {"path": FOLDER}}, "servedNames": ["smollm2"]})
    installed.apply(body)
    serves_without_a_store(installed, expected, digest)
    assert len(set(installed.stage_nodes().values())) == 2
    take_away(installed)

    claim_on_one_pc(installed)
    body["spec"] |= {"stages": {"count": 1}}
    body["spec"]["model"]["volume"] = {"persistentVolumeClaim": {"claimName": "models"}, "path": "smollm2"}
    installed.apply(body)
    serves_without_a_store(installed, expected, digest)
    assert installed.stage_nodes() == {0: OWNER}
    take_away(installed)
    installed.kubectl("delete", "--namespace", installed.namespace, "persistentvolumeclaim/models", "--timeout=60s")
    installed.kubectl("delete", "persistentvolume/models", "--timeout=60s")


def serves_without_a_store(serving: Serving, expected: str, digest: str) -> None:
    serving.wait_ready()
    assert serving.pods("store") == []
    for pod in serving.pods("stage"):
        assert [each["name"] for each in pod["spec"].get("initContainers", ())] == []
    assert serving.answer(ASKED) == expected
    assert serving.model()["status"]["modelDigest"] == digest


def claim_on_one_pc(serving: Serving) -> None:
    """A volume that an administrator has made, as storage of one PC is: no other can mount it."""
    size = {"storage": "1Gi"}
    node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [OWNER]}
    volume = {
        "capacity": size,
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "",
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": FOLDER.rpartition("/")[0], "type": "Directory"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [node]}]}},
    }
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "",
        "volumeName": "models",
        "resources": {"requests": size},
    }
    for kind, spec in (("PersistentVolume", volume), ("PersistentVolumeClaim", claim)):
        where = {} if kind == "PersistentVolume" else {"namespace": serving.namespace}
        manifest = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "models", **where}, "spec": spec}
        serving.kubectl("apply", "--filename", "-", stdin=json.dumps(manifest))
