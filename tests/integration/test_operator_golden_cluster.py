"""The example on a real API server: children, plan and status are those of the golden file, and no others."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.resource.bounds import quantity_bytes
from shoal_operator.cluster.kinds import CHILDREN, CONFIG_MAP, JOB, SECRET
from testcluster.api import Api, Manifest
from testcluster.kubectl import Command
from testcluster.kubelet import Kubelet, PodFate
from testcluster.nodes import Nodes, NodeSpec
from testcluster.operating import DEADLINE_S, EXAMPLE, MODELS, Cluster, Start, all_well
from testcluster.processes import wait_until

GOLDEN = Path(__file__).parents[1] / "unit/operator/golden/example.yaml"
# As in the golden files.
NAMESPACE = "ai"
PCS = {"pc-01": "28Gi", "pc-02": "14Gi", "pc-03": "14Gi", "pc-04": "12Gi", "pc-05": "10Gi"}

Name = tuple[str, str]


@pytest.fixture
def namespace(admin: Api, nodes: Nodes, kubelet: Kubelet, storage: str) -> Iterator[str]:
    """The namespace of the golden files: certificates, URLs and addresses hold its name.

    It ends while nodes and kubelets are still there, because its pods need them for their own end.
    """
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    wait_until(
        lambda: admin.find("v1", "serviceaccounts", "default", namespace=NAMESPACE),
        what="the default ServiceAccount",
        deadline_s=DEADLINE_S,
    )
    yield NAMESPACE
    admin.delete("v1", "namespaces", NAMESPACE)
    wait_until(lambda: admin.find("v1", "namespaces", NAMESPACE) is None, what="its end", deadline_s=DEADLINE_S)


def name_of(obj: Manifest) -> Name:
    return obj["kind"], obj["metadata"]["name"]


def children(admin: Api) -> dict[Name, Manifest]:
    """Every child that exists now."""
    found: dict[Name, Manifest] = {}
    for kind in CHILDREN:
        listed = admin.list(kind.api_version, kind.plural, namespace=NAMESPACE, labels="shoal.dev/model=llama-8b")
        # Items of a list do not say what they are.
        what = {"apiVersion": kind.api_version, "kind": kind.kind}
        found |= {(kind.kind, each["metadata"]["name"]): what | each for each in listed}
    return found


def differences(wanted: Any, found: Any, where: str) -> Iterator[str]:
    """Where what is stored is not what was wanted; what the API server adds is no difference."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key, value in wanted.items():
            if key not in found and value:
                yield f"{where}.{key} is missing"
            else:
                # An empty list or map that is left out is the same.
                yield from differences(value, found.get(key, value), f"{where}.{key}")
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for at, (one, other) in enumerate(zip(wanted, found, strict=True)):
            yield from differences(one, other, f"{where}[{at}]")
    elif wanted != found and not same_amount(wanted, found):
        yield f"{where}: {wanted!r} became {found!r}"


def same_amount(one: Any, other: Any) -> bool:
    """Whether two quantities are the same, written differently."""
    try:
        return bool(quantity_bytes(one) == quantity_bytes(other))
    except (TypeError, ValueError):
        return False


def comparable(obj: Manifest, golden: bool) -> Manifest:
    """The object without what differs from run to run: the hash counts the owner's uid, keys are made anew."""
    metadata = obj["metadata"]
    annotations = {key: value for key, value in metadata.get("annotations", {}).items() if key != "shoal.dev/hash"}
    kept = obj | {"metadata": metadata | {"annotations": annotations}}
    if obj["kind"] == SECRET.kind:
        kept |= {"data": sorted(obj["data"])}
        if golden:
            kept["metadata"]["annotations"] = {}
    return kept


def without_times(status: Manifest) -> str:
    conditions = [
        {key: value for key, value in each.items() if key != "lastTransitionTime"} for each in status["conditions"]
    ]
    return yaml.safe_dump(status | {"conditions": conditions}, width=200)


def test_apply_of_the_example_makes_what_the_golden_file_says(
    start_operator: Start,
    crd: str,
    nodes: Nodes,
    kubelet: Kubelet,
    admin: Api,
    cluster: Cluster,
    kubectl: Command,
) -> None:
    for name, memory in PCS.items():
        nodes.add(NodeSpec(name=name, memory=memory))
    seen: dict[Name, Manifest] = {}

    def watched(pod: Manifest) -> PodFate:
        # Jobs and what they told go when they are done: they are looked at while they are there.
        seen.update({name: obj for name, obj in children(admin).items() if obj["kind"] in (JOB.kind, CONFIG_MAP.kind)})
        return all_well(pod)

    kubelet.decide(watched)
    start_operator(SHOAL_STAGE_IMAGE="stage:1", SHOAL_ROUTER_IMAGE="router:1")
    kubectl("apply", "-n", NAMESPACE, "-f", str(EXAMPLE))
    cluster.wait_for("Ready")
    model = cluster.model()
    text = GOLDEN.read_text().replace("3c9e0a52-0000-4000-8000-000000000000", model["metadata"]["uid"])
    documents = list(yaml.safe_load_all(text))
    golden = {name_of(each): comparable(each, golden=True) for each in documents if "kind" in each}
    (status,) = [each["status"] for each in documents if "kind" not in each]

    wanted = without_times(status)

    def settled() -> bool:
        return without_times(cluster.model()["status"]) == wanted

    try:
        wait_until(settled, what="the status of the golden file", deadline_s=DEADLINE_S)
    finally:
        shown = difflib.unified_diff(
            wanted.splitlines(), without_times(cluster.model()["status"]).splitlines(), lineterm="", n=0
        )
        print(*shown, sep="\n")  # noqa: T201 - shown when the status did not come
    held = children(admin)
    assert held.keys() <= golden.keys()
    assert (seen | held).keys() == golden.keys()
    assert {kind for kind, _ in golden.keys() - held.keys()} <= {JOB.kind, CONFIG_MAP.kind}
    found = [
        difference
        for name, obj in golden.items()
        for difference in differences(obj, comparable((seen | held)[name], golden=False), " ".join(name))
    ]
    assert found == []
    assert admin.get(*MODELS, "llama-8b", namespace=NAMESPACE)["metadata"].get("finalizers") is None
