"""What the end-to-end tests ask of an office that serves: its ShardedModel, its pods, answers through the Service."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import openai
import yaml

from testcluster.api import Manifest
from testcluster.kubectl import Command
from testcluster.office import Office
from testcluster.processes import wait_until
from testcluster.streaming import Stream

SYSTEM: Final = "shoal-system"
MODELS: Final = "shoal.dev/v1alpha1", "shardedmodels"
READY_S: Final = 420.0
ROOT: Final = Path(__file__).parents[4]
CHART: Final = ROOT / "charts/shoal"

# As an office without Intel GPUs writes them; everything else is the chart's default.
VALUES: Final[dict[str, Any]] = {
    "operator": {"storeSize": "2Gi"},
}


SEA: Final = "Name three animals that live in the sea."
LIGHTHOUSE: Final = "Tell a long story about a lighthouse."


def example(**spec: Any) -> Manifest:
    """examples/smollm2.yaml, with these parts of its spec in place of its own."""
    body: Manifest = yaml.safe_load((ROOT / "examples/smollm2.yaml").read_text())
    body["spec"] |= spec
    return body


def exact_example(**spec: Any) -> Manifest:
    """The same, computed exactly: it says the same however it is cut."""
    return example(devices=["CPU"], execution={"mode": "Exact"}, **spec)


def three_stages(standbys: int = 0) -> Manifest:
    """The exact example in three stages; a standby is on the fourth PC."""
    return exact_example(stages={"count": 3}, placement={"sparePods": standbys})


def question(text: str, tokens: int = 32, *, to_the_length: bool = False) -> dict[str, Any]:
    """A request of `chat.completions.create`: greedy, for so many tokens at most, or exactly."""
    asked = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": tokens,
    }
    return asked | ({"extra_body": {"ignore_eos": True}} if to_the_length else {})


@dataclass(slots=True)
class Serving:
    """The commands of the office's administrator, and a namespace of its users'."""

    office: Office
    kubectl: Command
    helm: Command
    folder: Path
    namespace: str = "team"

    def install(self, *arguments: str, **values: Any) -> str:
        """helm install, or upgrade, with the office's values."""
        file = self.folder / "values.json"
        file.write_text(json.dumps(VALUES | values))
        command = ("upgrade", "--install", "shoal", str(CHART), "--namespace", SYSTEM, "--create-namespace")
        return self.helm(*command, "--values", str(file), "--wait", "--timeout", "110s", *arguments)

    def label_all(self) -> None:
        """Name every PC that may serve."""
        self.kubectl("label", "node", "--all", "--overwrite", "shoal.dev/platform=lunar-lake")

    def apply(self, manifest: Manifest) -> None:
        """kubectl apply."""
        self.kubectl("apply", "--namespace", self.namespace, "--filename", "-", stdin=json.dumps(manifest))

    def model(self, name: str = "smollm2") -> Manifest:
        """The ShardedModel as it is now."""
        return self.office.api.get(*MODELS, name, namespace=self.namespace)

    def condition(self, kind: str, name: str = "smollm2") -> dict[str, Any]:
        """One of its conditions."""
        found = self.model(name).get("status", {}).get("conditions", [])
        return next((dict(each) for each in found if each["type"] == kind), {"status": "", "reason": ""})

    def wait_ready(self, name: str = "smollm2", replicas: int = 1, deadline_s: float = READY_S) -> None:
        """Wait until it is Ready with so many pipelines; what it and its pods say is printed when it does not come."""

        def ready() -> bool:
            status = self.model(name).get("status", {})
            counts = (status.get("replicas"), status.get("readyReplicas"))
            return self.condition("Ready", name)["status"] == "True" and counts == (replicas, replicas)

        try:
            wait_until(ready, what=f"{name} to be Ready", deadline_s=deadline_s, poll_s=0.5)
        except Exception:
            print(json.dumps(self.model(name).get("status"), indent=1))  # noqa: T201
            print(self.kubectl("get", "pods", "-A", "-o", "wide"))  # noqa: T201
            print(self.kubectl("get", "events", "-n", self.namespace, "--sort-by=.lastTimestamp"))  # noqa: T201
            raise

    def pods(self, role: str, name: str = "smollm2") -> list[Manifest]:
        """The pods of a role that are not being deleted."""
        labels = f"shoal.dev/model={name},shoal.dev/role={role}"
        pods = self.office.api.list("v1", "pods", namespace=self.namespace, labels=labels)
        return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]

    def stage_nodes(self, name: str = "smollm2") -> dict[int, str]:
        """The node of each stage of the first pipeline, as the status says."""
        (first, *_) = self.model(name)["status"]["plan"]["pipelines"]
        return {stage["index"]: stage["node"] for stage in first["stages"]}

    def standbys(self, name: str = "smollm2") -> dict[str, tuple[int, bool]]:
        """The node of each standby: the stage that it stands by for, and whether it is loaded."""
        plan = self.model(name)["status"].get("plan", {})
        return {each["node"]: (each["index"], each["ready"]) for each in plan.get("standbys", [])}

    def wait_for_a_standby(self, node: str = "", name: str = "smollm2", deadline_s: float = 120.0) -> int:
        """Wait for a standby that is loaded, on this node if one is named; the stage that it stands by for."""

        def loaded() -> tuple[int] | None:
            found = [index for where, (index, ready) in self.standbys(name).items() if ready and node in ("", where)]
            return (found[0],) if found else None

        (index,) = wait_until(loaded, what=f"a loaded standby {node}", deadline_s=deadline_s, poll_s=0.5)
        return index

    def clear(self, node: str) -> None:
        """Have operator and router go elsewhere, as for a PC that is to be repaired; stages stay."""
        self.kubectl("cordon", node)
        for namespace, selector in (
            (SYSTEM, "app.kubernetes.io/name=shoal-operator"),
            (self.namespace, "shoal.dev/role=router"),
        ):
            on_it = ("--namespace", namespace, "--selector", selector, "--field-selector", f"spec.nodeName={node}")
            self.kubectl("delete", "pods", *on_it, "--timeout=90s")
        self.kubectl("uncordon", node)
        self.kubectl("rollout", "status", "--namespace", SYSTEM, "deployment/shoal-operator", "--timeout=90s")
        self.kubectl("rollout", "status", "--namespace", self.namespace, "deployment/smollm2-router", "--timeout=90s")
        self.wait_ready()

    def url(self, name: str = "smollm2") -> str:
        """The API behind the Service's address."""
        service = self.office.api.get("v1", "services", name, namespace=self.namespace)["spec"]
        return f"http://{service['clusterIP']}:{service['ports'][0]['port']}/v1"

    def client(self, name: str = "smollm2", timeout_s: float = 180.0, retries: int = 0) -> openai.OpenAI:
        """openai-python at the Service; nothing is asked twice behind the test's back, unless the test wants that."""
        direct = openai.DefaultHttpxClient(trust_env=False)  # no proxy leads to a Service
        return openai.OpenAI(
            base_url=self.url(name), api_key="none", max_retries=retries, timeout=timeout_s, http_client=direct
        )

    def stream(self, asked: dict[str, Any], retries: int = 0) -> Stream:
        """An answer of the model that comes in the background."""
        return Stream().start(partial(self.client, retries=retries), **asked)

    def answer(self, asked: dict[str, Any], retries: int = 0, deadline_s: float = 300.0) -> str:
        """The whole text of an answer that is streamed."""
        return self.stream(asked, retries).join(deadline_s=deadline_s)

    def pulled(self, pod: Manifest) -> tuple[int, int]:
        """Bytes that the pod's init container fetched, and that were there."""
        name = pod["metadata"]["name"]
        said = self.kubectl("logs", "--namespace", self.namespace, name, "--container", "pull")
        found = re.search(r"(\d+) bytes fetched, (\d+) were there", said)
        assert found is not None, said
        return int(found[1]), int(found[2])

    def files_of(self, claim: str) -> Path:
        """Where the files of a claim are for this machine: on the disk of the PC that has its volume."""
        bound = self.office.api.get("v1", "persistentvolumeclaims", claim, namespace=self.namespace)
        volume = self.office.api.get("v1", "persistentvolumes", bound["spec"]["volumeName"])["spec"]
        (term,) = volume["nodeAffinity"]["required"]["nodeSelectorTerms"]
        (node,) = term["matchExpressions"][0]["values"]
        return self.office.workers[node].machine.path(volume["hostPath"]["path"])

    def in_a_pod(self, name: str, program: str, labels: dict[str, str], deadline_s: float = 120.0) -> tuple[bool, str]:
        """Run a Python program in a pod of the stage's image; whether it ended well, and what it printed."""
        image = self.pods("stage")[0]["spec"]["containers"][0]["image"]
        container = {"name": "program", "image": image, "command": ["python", "-c", program]}
        spec = {"restartPolicy": "Never", "containers": [container]}
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec})

        def ended() -> str:
            pod = self.office.api.get("v1", "pods", name, namespace=self.namespace)
            phase = str(pod["status"].get("phase"))
            return phase if phase in ("Succeeded", "Failed") else ""

        phase = wait_until(ended, what=f"the end of the pod {name}", deadline_s=deadline_s, poll_s=0.5)
        said = self.kubectl("logs", "--namespace", self.namespace, name)
        self.kubectl("delete", "pod", "--namespace", self.namespace, name, "--wait=false")
        return phase == "Succeeded", said

    def uninstall(self) -> None:
        """helm uninstall."""
        self.helm("uninstall", "shoal", "--namespace", SYSTEM, "--wait")

    def wait_for_nothing(self) -> None:
        """Wait until nothing of shoal is left in the users' namespace."""
        wait_until(lambda: not self.children(), what="the end of all children", deadline_s=120.0, poll_s=0.5)

    def children(self) -> list[str]:
        """Everything of shoal in the users' namespace, as kind/name."""
        kinds = "deployments,services,configmaps,secrets,jobs,pods,persistentvolumeclaims,networkpolicies,roles"
        kinds += ",rolebindings,serviceaccounts,poddisruptionbudgets,ingresses"
        text = self.kubectl(
            "get", kinds, "--namespace", self.namespace, "--selector", "shoal.dev/model", "--output", "name"
        )
        return text.split()
