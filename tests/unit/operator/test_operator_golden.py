"""Every child of a ShardedModel as a golden file: what a change of a builder changes is seen in its diff.

SHOAL_WRITE_GOLDEN=1 writes the files anew; look at the diff before it is committed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal_operator.cluster.kinds import CHILDREN, SECRET
from shoal_operator.settings import OperatorSettings

GOLDEN = Path(__file__).parent / "golden"

EXAMPLE = yaml.safe_load((Path(__file__).parents[3] / "examples/llama-3.1-8b.yaml").read_text())

CASES: dict[str, dict[str, Any]] = {
    # The example, on five PCs of different memory.
    "example": {"spec": {"placement": EXAMPLE["spec"]["placement"]}, "settings": {}},
    "volume-claim": {
        "spec": {
            "model": {"volume": {"persistentVolumeClaim": {"claimName": "models"}, "path": "llama/int4"}},
            "execution": {"mode": "Exact"},
            "devices": ["CPU"],
            "scheduler": {"streams": 1, "maxContext": 1024},
        },
        "settings": {"node_cache": ""},
    },
    "volume-image": {
        "spec": {
            "model": {"volume": {"image": {"reference": "registry.local/llama:1"}}},
            "router": {"tlsSecretName": "llm-tls"},
        },
        "settings": {},
    },
    "everything": {
        "spec": {
            "replicas": 2,
            "stages": {"count": 2},
            "scheduler": {
                "streams": 2,
                "maxContext": 4096,
                "speculative": {"mode": "Fixed", "maxTokens": 4, "draft": {"source": {"uri": "hf://org/draft"}}},
            },
            "placement": {
                "nodeSelector": {"shoal.dev/platform": "lunar-lake"},
                "tolerations": [{"key": "office", "operator": "Exists"}],
                "priorityClassName": "whenever",
            },
            "router": {
                "service": {"type": "NodePort", "port": 80, "nodePort": 30080, "annotations": {"a": "b"}},
                "ingress": {"host": "llm.office.example", "className": "traefik", "tlsSecretName": "llm-tls"},
                "resources": {"limits": {"memory": "2Gi"}},
                "apiKeysSecretRef": {"name": "llm-keys", "key": "keys.txt"},
                "requestsPerKey": 8,
                "requestsPerMinute": 120,
            },
            "image": {"stage": "registry.local/stage:2", "pullSecrets": [{"name": "registry"}], "pullPolicy": "Always"},
        },
        "settings": {
            "image_pull_secrets": ("operators",),
            "supplemental_groups": (109, 992),
            "storage_class": "fast",
            "otlp_endpoint": "http://collector:4318",
        },
    },
}


@pytest.mark.parametrize("case", CASES)
async def test_children_are_as_their_golden_file_says(make_office, make_node, make_model, case):
    chosen = CASES[case]
    settings = OperatorSettings(stage_image="stage:1", router_image="router:1", **chosen["settings"])
    sizes = {"pc-01": "28Gi", "pc-02": "14Gi", "pc-03": "14Gi", "pc-04": "12Gi", "pc-05": "10Gi"}
    office = make_office(*(make_node(name, size) for name, size in sizes.items()), settings=settings)
    model = make_model(**chosen["spec"])
    model["metadata"]["uid"] = "3c9e0a52-0000-4000-8000-000000000000"
    office.cluster.put(model)
    first = {}
    for _ in range(6):
        await office.reconcile()
        first |= {ref: obj for ref, obj in office.cluster.objects.items() if ref.kind in CHILDREN}
        office.workloads.step()
    wanted = sorted(first.values(), key=lambda obj: (CHILDREN.index(_kind(obj)), obj["metadata"]["name"]))
    text = yaml.safe_dump_all([_stable(obj) for obj in wanted], sort_keys=True, width=120)
    status = office.model()["status"]
    for condition in status["conditions"]:
        condition["lastTransitionTime"] = "2026-11-29T12:00:00Z"
    text += "---\n" + yaml.safe_dump({"status": status}, sort_keys=True, width=120)
    path = GOLDEN / f"{case}.yaml"
    if os.environ.get("SHOAL_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


def _kind(obj: dict[str, Any]) -> Any:
    return next(kind for kind in CHILDREN if kind.kind == obj["kind"])


def _stable(obj: dict[str, Any]) -> dict[str, Any]:
    """Without what the API server adds, and without keys that are made anew each time."""
    metadata = {
        key: value
        for key, value in obj["metadata"].items()
        if key not in ("uid", "resourceVersion", "creationTimestamp", "generation")
    }
    kept = {key: value for key, value in obj.items() if key != "status"} | {"metadata": metadata}
    if obj["kind"] == SECRET.kind:
        kept["data"] = dict.fromkeys(obj["data"], "...")
        metadata["annotations"] = dict.fromkeys(metadata["annotations"], "...")
    return kept
