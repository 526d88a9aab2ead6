"""A ShardedModel as the API server keeps it: defaults, pruning, status and scale subresources, what kubectl shows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shoal.resource import sharded_model_from_object
from testcluster.api import Api, Manifest, Refused
from testcluster.kubectl import Command

API_VERSION = "shoal.dev/v1alpha1"
NOW = "2026-01-01T12:00:00Z"

STATUS: dict[str, Any] = {
    "observedGeneration": 1,
    "conditions": [
        {"type": "Planned", "status": "True", "reason": "Planned", "message": "", "lastTransitionTime": NOW},
        {
            "type": "Ready",
            "status": "False",
            "reason": "Loading",
            "message": "1 of 2 stages is ready",
            "observedGeneration": 1,
            "lastTransitionTime": NOW,
        },
    ],
    "replicas": 1,
    "readyReplicas": 0,
    "selector": "shoal.dev/model=llama",
    "stages": "1/2",
    "devices": "GPU",
    "url": "http://llama.default:8000/v1",
    "modelDigest": "0" * 64,
    "measured": {
        "placement": "4f1d",
        "firstTokenMilliseconds": 120.5,
        "tokensPerSecond": 9.5,
        "promptTokens": 64,
    },
    "plan": {
        "summary": "pc-1: embed, 0-15 | pc-2: 16-31, head",
        "tokensPerSecond": 11,
        "spares": ["pc-3"],
        "pipelines": [
            {
                "index": 0,
                "stages": [
                    {
                        "index": 0,
                        "node": "pc-1",
                        "device": "GPU",
                        "layers": "embed, 0-15",
                        "memoryBytes": 3_000_000_000,
                    },
                    {
                        "index": 1,
                        "node": "pc-2",
                        "device": "GPU",
                        "layers": "16-31, head",
                        "memoryBytes": 3_000_000_000,
                    },
                ],
            }
        ],
    },
}


@pytest.fixture
def llama(crd: str, admin: Api, namespace: str) -> Manifest:
    """The smallest ShardedModel that is right."""
    manifest = {
        "apiVersion": API_VERSION,
        "kind": "ShardedModel",
        "metadata": {"name": "llama"},
        "spec": {"model": {"source": {"uri": "hf://org/model"}}},
    }
    return admin.create(manifest, namespace=namespace)


def set_status(admin: Api, namespace: str, status: dict[str, Any]) -> Manifest:
    return admin.patch(API_VERSION, "shardedmodels/status", "llama", {"status": status}, namespace=namespace)


def test_defaults_are_filled_in_to_the_deepest_level(llama):
    spec = llama["spec"]
    assert (spec["precision"], spec["replicas"], spec["devices"]) == ("INT4", 1, ["GPU"])
    assert spec["execution"] == {"mode": "Fast"}
    assert spec["stages"] == {"mode": "Auto"}
    assert spec["placement"] == {"sparePods": 0, "maxMemoryFraction": 0.7, "whenInUse": "Ignore"}
    assert spec["scheduler"]["speculative"] == {"mode": "Auto", "maxTokens": 8}
    assert spec["recovery"] == {"replanAfterSeconds": 30, "maxAttempts": 3, "maxPauseSeconds": 120}
    assert spec["router"]["service"] == {"type": "ClusterIP", "port": 8000}
    assert spec["image"] == {"pullPolicy": "IfNotPresent"}
    assert "status" not in llama


def test_defaults_are_those_of_shoal_run(llama):
    bare = llama | {"spec": {"model": {"source": {"uri": "hf://org/model"}}}}
    assert sharded_model_from_object(llama).spec == sharded_model_from_object(bare).spec


def test_unknown_fields_are_pruned_where_the_client_lets_them_pass(admin, namespace, llama):
    change = {"spec": {"colour": "blue", "scheduler": {"colour": "blue"}}}
    held = admin.patch(API_VERSION, "shardedmodels", "llama", change, namespace=namespace)
    assert held["spec"] == llama["spec"]
    assert held["metadata"]["generation"] == llama["metadata"]["generation"]


def test_status_and_spec_are_written_apart(admin, namespace, llama):
    held = set_status(admin, namespace, STATUS)
    assert held["status"] == STATUS  # The schema of the status fills nothing in.
    assert held["metadata"]["generation"] == llama["metadata"]["generation"]
    admin.patch(API_VERSION, "shardedmodels", "llama", {"status": {"stages": "9/9"}}, namespace=namespace)
    assert admin.get(API_VERSION, "shardedmodels", "llama", namespace=namespace)["status"]["stages"] == "1/2"
    # Every field that is written is known to the schema and to the types.
    assert sharded_model_from_object(held).status is not None


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ({"conditions": [{"type": "Ready", "status": "Yes", "reason": "X", "lastTransitionTime": NOW}]}, "Unsupported"),
        (
            {"conditions": [{"type": "Ready", "status": "True", "reason": "not one word", "lastTransitionTime": NOW}]},
            "should match",
        ),
        ({"conditions": [STATUS["conditions"][1], STATUS["conditions"][1]]}, "Duplicate value"),
        ({"readyReplicas": -1}, "greater than or equal to 0"),
    ],
    ids=["status", "reason", "twice", "negative"],
)
def test_a_status_that_makes_no_sense_is_refused(admin, namespace, llama, status, says):
    with pytest.raises(Refused, match=says):
        set_status(admin, namespace, status)


def test_scale_changes_whole_pipelines(admin, namespace, llama, kubectl: Command):
    set_status(admin, namespace, STATUS)
    scale = admin.get(API_VERSION, "shardedmodels/scale", "llama", namespace=namespace)
    assert scale["spec"] == {"replicas": 1}
    assert scale["status"] == {"replicas": 1, "selector": "shoal.dev/model=llama"}
    kubectl("scale", "-n", namespace, "shardedmodel/llama", "--replicas=2")
    held = admin.get(API_VERSION, "shardedmodels", "llama", namespace=namespace)
    assert held["spec"]["replicas"] == 2
    assert held["metadata"]["generation"] == llama["metadata"]["generation"] + 1
    with pytest.raises(Refused, match="less than or equal to 16"):
        admin.patch(API_VERSION, "shardedmodels/scale", "llama", {"spec": {"replicas": 17}}, namespace=namespace)


def columns(text: str) -> list[list[str]]:
    return [row.split() for row in text.splitlines()]


def test_kubectl_shows_the_columns(admin, namespace, llama, kubectl: Command):
    set_status(admin, namespace, STATUS)
    header, row = columns(kubectl("get", "-n", namespace, "smodel"))
    assert header == ["NAME", "READY", "REASON", "STAGES", "URL", "AGE"]
    assert row[:-1] == ["llama", "False", "Loading", "1/2", "http://llama.default:8000/v1"]
    header, row = columns(kubectl("get", "-n", namespace, "shoal", "-o", "wide"))
    assert header == ["NAME", "READY", "REASON", "STAGES", "URL", "TOK/S", "MEASURED", "DEVICE", "PLAN", "AGE"]
    assert row[5:9] == ["11", "9.5", "GPU", "pc-1:"]


def test_kubectl_waits_for_ready(admin, namespace, llama, kubectl: Command):
    ready = [condition | {"status": "True", "reason": "AllGood"} for condition in STATUS["conditions"]]
    set_status(admin, namespace, STATUS | {"conditions": ready})
    shown = kubectl("wait", "-n", namespace, "--for=condition=Ready", "shardedmodel/llama", "--timeout=30s")
    assert "condition met" in shown


def test_kubectl_explains_every_field(crd, kubectl: Command):
    shown = kubectl("explain", "shardedmodel.spec.scheduler.kvPrecision")
    assert "How keys and values are stored" in shown
    assert {"Auto", "U8", "F16", "F32"} <= set(shown.replace(",", " ").split())


def test_the_schema_describes_every_field_of_the_spec(crd, admin):
    held = admin.get("apiextensions.k8s.io/v1", "customresourcedefinitions", crd)
    (version,) = held["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert list(undescribed(spec, "spec")) == [], json.dumps(held["status"]["conditions"])


def undescribed(schema: dict[str, Any], where: str) -> list[str]:
    """The fields below that say nothing to `kubectl explain`."""
    found = []
    for name, each in schema.get("properties", {}).items():
        if not each.get("description"):
            found.append(f"{where}.{name}")
        found += undescribed(each, f"{where}.{name}")
        found += undescribed(each.get("items", {}), f"{where}.{name}[]")
    return found
