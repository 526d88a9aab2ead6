"""From helm install to an answer, and back to nothing: the way of an office's administrator, on real nodes."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from shoal.plan.facts_json import facts_from_json
from shoal.resource.bounds import quantity_bytes
from testcluster.processes import wait_until
from testcluster.serving_office import ROOT, SEA, SYSTEM, Serving, question

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900, func_only=True)]
ASKED = question(SEA)
CACHE = "/var/lib/shoal"


def cached(serving: Serving, node: str) -> int:
    """Bytes of models that a node holds."""
    folder = serving.office.workers[node].machine.path(CACHE)
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def memory_of(serving: Serving, pod: dict[str, Any]) -> tuple[int, int, int]:
    """Of the pod's control group: bytes of its processes now, the most that it held with files, refused allocations."""
    node, uid = pod["spec"]["nodeName"], pod["metadata"]["uid"]
    (found,) = serving.office.workers[node].machine.memory_group.glob(f"kubepods/**/pod{uid}")
    figures = dict(line.split() for line in (found / "memory.stat").read_text().splitlines())
    peak, refused = (int((found / f"memory.{name}").read_text()) for name in ("max_usage_in_bytes", "failcnt"))
    return int(figures["total_rss"]), peak, refused


def test_from_install_to_answers_and_back(office: Serving) -> None:
    for worker in office.office.workers.values():
        shutil.rmtree(worker.machine.path(CACHE), ignore_errors=True)  # of tests before this one
    said = office.install()
    assert "shoal 0.1.0 is installed in shoal-system" in said
    office.label_all()
    office.kubectl("apply", "--namespace", office.namespace, "--filename", str(ROOT / "examples/smollm2.yaml"))
    office.kubectl(
        "wait", "--namespace", office.namespace, "--for=condition=Ready", "shardedmodel/smollm2", "--timeout=110s",
        check=False,
    )  # fmt: skip
    office.wait_ready()

    assert len(office.answer(ASKED)) > 20
    with office.client() as client:
        whole = client.chat.completions.create(**ASKED)
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 5

    metrics_can_be_scraped(office)
    each_node_holds_its_own_blocks(office)
    pods_stay_below_what_they_asked_for(office)
    a_second_start_downloads_nothing(office)

    office.kubectl("delete", "--namespace", office.namespace, "shardedmodel/smollm2", "--timeout=60s")
    office.wait_for_nothing()
    office.uninstall()
    wait_until(lambda: left_of_the_chart(office) == [], what="the end of what the chart installed", deadline_s=60.0)


def left_of_the_chart(serving: Serving) -> list[str]:
    """What is still there of it, but for the CRD, with which all ShardedModels would go, and the operator's Lease."""
    here = "deployments,daemonsets,services,configmaps,secrets,pods,networkpolicies,roles,rolebindings,serviceaccounts"
    everywhere = "clusterroles,clusterrolebindings,priorityclasses"
    everywhere += ",validatingadmissionpolicies,validatingadmissionpolicybindings"
    left = serving.kubectl("get", here, "--namespace", SYSTEM, "--output", "name").split()
    left += [name for name in serving.kubectl("get", everywhere, "--output", "name").split() if "shoal" in name]
    print(f"left of the chart: {left}")
    return [name for name in left if name not in ("serviceaccount/default", "configmap/kube-root-ca.crt")]


def metrics_can_be_scraped(serving: Serving) -> None:
    """As Prometheus does: from another pod; the router's by its pod, the operator's by the chart's Service.

    It tries for some seconds, as every scrape is repeated: kube-router learns of a new pod a moment after its start.
    """
    (router,) = serving.pods("router")
    operator = serving.office.api.get("v1", "services", "shoal-operator", namespace=SYSTEM)["spec"]["clusterIP"]
    program = (
        "import sys, time, urllib.request\n"
        "def scraped(url):\n"
        "    for attempt in range(10):\n"
        "        try: return urllib.request.urlopen(url, timeout=3).read().decode()\n"
        "        except OSError as error: last = error; time.sleep(1)\n"
        "    sys.exit(f'{url}: {last}')\n"
        f"print(scraped('http://{router['status']['podIP']}:9100/metrics'))\n"
        f"print(scraped('http://{operator}:8080/metrics'))\n"
    )
    ended_well, said = serving.in_a_pod("prometheus", program, {"app": "prometheus"})
    assert ended_well, said
    figures = dict(line.rsplit(" ", 1) for line in said.splitlines() if line.startswith("shoal_"))
    assert float(figures["shoal_generated_tokens_total"]) > 20
    assert float(figures["shoal_operator_leading"]) == 1
    assert figures['shoal_pipeline_open{pipeline="0"}'] == "1.0"


def each_node_holds_its_own_blocks(serving: Serving) -> None:
    facts = serving.office.api.get("v1", "configmaps", "smollm2-facts", namespace=serving.namespace)
    known = facts_from_json(facts["data"]["facts.json"])
    blocks = known.embed_bytes + sum(known.layer_bytes) + known.head_bytes
    nodes = set(serving.stage_nodes().values())
    held = {node: cached(serving, node) for node in serving.office.workers}
    print(f"bytes of blocks in all: {blocks}; held: {held}")
    assert all(held[node] > 0 for node in nodes)
    assert all(held[node] == 0 for node in held if node not in nodes)
    assert all(held[node] < 0.8 * blocks for node in nodes), held


def pods_stay_below_what_they_asked_for(serving: Serving) -> None:
    """What processes hold; the pages of files that they have read are the kernel's to give up."""
    operators = serving.office.api.list("v1", "pods", namespace=SYSTEM)
    for pod in [*serving.pods("stage"), *serving.pods("router"), *serving.pods("store"), *operators]:
        asked = sum(quantity_bytes(each["resources"]["requests"]["memory"]) for each in pod["spec"]["containers"])
        now, peak, refused = memory_of(serving, pod)
        name = pod["metadata"]["name"]
        print(f"{name}: asked for {asked >> 20} MiB, holds {now >> 20}, with files at most {peak >> 20}, {refused=}")
        assert now <= asked, name


def a_second_start_downloads_nothing(serving: Serving) -> None:
    first = serving.pods("stage")
    assert all(serving.pulled(pod)[0] > 0 for pod in first)
    serving.kubectl("delete", "pods", "--namespace", serving.namespace, "--selector", "shoal.dev/role=stage")
    serving.wait_ready()
    wait_until(
        lambda: len(serving.pods("stage")) == len(first), what="the stages' new pods", deadline_s=60.0, poll_s=0.5
    )
    for pod in serving.pods("stage"):
        fetched, present = serving.pulled(pod)
        print(f"{pod['metadata']['name']}: {fetched} bytes fetched, {present} were there")
        assert (fetched, present > 0) == (0, True)
