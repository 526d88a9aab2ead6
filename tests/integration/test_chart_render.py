"""What Helm makes of the chart: values in, manifests out. No cluster is asked here."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.plan import Device
from shoal.resource.nodes import parse_nodes
from shoal_operator.cluster import kinds
from shoal_operator.nodes import PLATFORM_LABEL, RESOURCES
from shoal_operator.settings import PREFIX, OperatorSettings
from shoal_stage.agent.command import agent_parser
from shoal_stage.agent.use import Patience

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/shoal"
NODE = {"name": "pc-1", "memory": {"total": "32Gi", "free": "20Gi"}}
NAMESPACED = {"mode": "Namespaced", "nodes": [NODE]}
SERVICE_MONITOR = "monitoring.coreos.com/v1/ServiceMonitor"
POD_MONITOR = "monitoring.coreos.com/v1/PodMonitor"
RULE = "monitoring.coreos.com/v1/PrometheusRule"
FEATURE_RULE = "nfd.k8s-sigs.io/v1alpha1/NodeFeatureRule"

Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def run_helm(helm_program: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs helm with values; there is no cluster that it could reach."""

    def run(verb: str, values: dict[str, Any], *flags: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "values.json"
        file.write_text(json.dumps(values))
        name = [] if verb == "lint" else ["shoal"]
        return subprocess.run(
            [helm_program, verb, *name, str(CHART), "--namespace", "shoal-system", "--values", str(file), *flags],
            env={"HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "none")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def render(run_helm) -> Render:
    """The manifests for the values; `apis` are kinds that the cluster is said to have."""

    def rendered(values: dict[str, Any] | None = None, *, apis: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        flags = [flag for api in apis for flag in ("--api-versions", api)]
        done = run_helm("template", values or {}, *flags)
        assert done.returncode == 0, done.stderr
        return [each for each in yaml.safe_load_all(done.stdout) if each]

    return rendered


def of_kind(manifests: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in manifests if each["kind"] == kind]


def the(manifests: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = of_kind(manifests, kind)
    return found


def environment(manifests: list[dict[str, Any]]) -> dict[str, str]:
    (container,) = the(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    return {
        each["name"]: each.get("value", f"from the pod's {json.dumps(each.get('valueFrom'))}")
        for each in container["env"]
    }


@pytest.mark.parametrize("values", [{}, NAMESPACED], ids=["cluster", "namespaced"])
def test_lint_finds_nothing(run_helm, values):
    done = run_helm("lint", values, "--strict")
    assert done.returncode == 0, done.stdout + done.stderr


def test_default_installs_these_kinds(render):
    assert sorted(each["kind"] for each in render()) == [
        *["ClusterRole"] * 4,
        "ClusterRoleBinding",
        "ConfigMap",
        "CustomResourceDefinition",
        "Deployment",
        "NetworkPolicy",
        "Pod",
        "PriorityClass",
        "Role",
        "RoleBinding",
        "Service",
        "ServiceAccount",
    ]


def test_case_106_namespaced_mode_has_nothing_cluster_wide(render):
    manifests = render(NAMESPACED | {"watchNamespaces": ["team-a", "team-b"]}, apis=(SERVICE_MONITOR, FEATURE_RULE))
    assert {each["metadata"]["namespace"] for each in manifests} == {"shoal-system", "team-a", "team-b"}
    wide = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "PriorityClass", "NodeFeatureRule"}
    assert wide.isdisjoint(each["kind"] for each in manifests)
    assert environment(manifests)["SHOAL_WATCH_NAMESPACES"] == "team-a,team-b"
    assert environment(manifests)["SHOAL_PRIORITY_CLASS"] == ""


def test_namespaced_mode_serves_its_own_namespace_unless_told_otherwise(render):
    assert environment(render(NAMESPACED))["SHOAL_WATCH_NAMESPACES"] == "shoal-system"


def test_nodes_of_the_values_are_a_nodes_file(render):
    node = NODE | {"devices": ["GPU"], "maxMemory": "16Gi", "speed": {"GPU": 1.0}, "linkMs": 0.4, "labels": {"a": "b"}}
    manifests = render(NAMESPACED | {"nodes": [node]})
    (nodes,) = [each for each in of_kind(manifests, "ConfigMap") if "nodes.yaml" in each["data"]]
    file = parse_nodes(nodes["data"]["nodes.yaml"])
    assert [(each.name, each.max_memory, each.link_ms) for each in file.nodes] == [("pc-1", "16Gi", 0.4)]
    pod = the(manifests, "Deployment")["spec"]["template"]["spec"]
    mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    assert environment(manifests)["SHOAL_NODES_FILE"] == f"{mounts['nodes']}/nodes.yaml"


def test_changed_nodes_restart_the_operator(render):
    def annotations(values: dict[str, Any]) -> dict[str, str]:
        found: dict[str, str] = the(render(values), "Deployment")["spec"]["template"]["metadata"]["annotations"]
        return found

    other = NODE | {"memory": {"total": "32Gi", "free": "10Gi"}}
    assert annotations(NAMESPACED) == annotations(NAMESPACED)
    assert annotations(NAMESPACED) != annotations(NAMESPACED | {"nodes": [other]})


def test_the_operator_reads_every_value_as_it_was_meant(render):
    values = {
        "images": {
            "stage": {"repository": "r/stage", "tag": "2"},
            "compile": {"repository": "r/compile", "tag": "2"},
            "router": {"repository": "r/router", "tag": "3"},
        },
        "imagePullSecrets": ["one", "two"],
        "priorityClass": {"name": "low"},
        "operator": {
            "nodeCache": "",
            "storageClass": "fast",
            "supplementalGroups": [109, 1000000000],
            "resyncSeconds": 1000000,
            "logFormat": "text",
            "logLevel": "DEBUG",
        },
    }
    given = environment(render(values))
    plain = {name: value for name, value in given.items() if not value.startswith("from the pod's")}
    settings = OperatorSettings.from_environment(plain)
    assert settings.stage_image == "r/stage:2"
    assert settings.compile_image == "r/compile:2"
    assert settings.router_image == "r/router:3"
    assert settings.image_pull_secrets == ("one", "two")
    assert settings.priority_class == "low"
    assert settings.node_cache == ""
    assert settings.storage_class == "fast"
    assert settings.supplemental_groups == (109, 1000000000)
    assert settings.resync_seconds == 1_000_000
    assert (settings.log_format, settings.log_level) == ("text", "DEBUG")
    assert set(given) == {PREFIX + name.upper() for name in OperatorSettings.model_fields}


def test_case_107_pull_secrets_reach_every_pod(render):
    manifests = render({"imagePullSecrets": ["registry"]})
    wanted = [{"name": "registry"}]
    assert the(manifests, "Deployment")["spec"]["template"]["spec"]["imagePullSecrets"] == wanted
    assert the(manifests, "Pod")["spec"]["imagePullSecrets"] == wanted
    assert environment(manifests)["SHOAL_IMAGE_PULL_SECRETS"] == "registry"


def test_a_digest_comes_before_a_tag(render):
    digest = "sha256:" + "0" * 64
    image = {"repository": "registry.local:5000/shoal/operator", "tag": "9", "digest": digest}
    manifests = render({"images": {"operator": image}})
    (container,) = the(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.local:5000/shoal/operator@{digest}"


def test_case_100_the_operator_is_one_and_never_two(render):
    spec = the(render(), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_pods_have_the_least_rights(render):
    manifests = render()
    for pod in (the(manifests, "Deployment")["spec"]["template"]["spec"], the(manifests, "Pod")["spec"]):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "memory" in container["resources"]["limits"]
            assert set(container["resources"]["requests"]) == {"cpu", "memory"}


def test_crd_is_kept_when_the_release_goes_and_otherwise_the_file(render):
    (file,) = (ROOT / "crds").glob("*.yaml")
    crd = the(render(), "CustomResourceDefinition")
    assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert crd == yaml.safe_load(file.read_text())
    assert of_kind(render({"crds": {"install": False}}), "CustomResourceDefinition") == []


@pytest.mark.parametrize(
    ("kind", "api"),
    [
        ("ServiceMonitor", SERVICE_MONITOR),
        ("PodMonitor", POD_MONITOR),
        ("PrometheusRule", RULE),
        ("NodeFeatureRule", FEATURE_RULE),
    ],
)
def test_kinds_of_others_are_there_only_where_the_cluster_has_them(render, kind, api):
    assert of_kind(render(), kind) == []
    assert len(of_kind(render(apis=(api,)), kind)) == 1


def test_kinds_of_others_can_be_left_out(render):
    off = {"enabled": False}
    values = {"metrics": {"serviceMonitor": off, "podMonitor": off, "rules": off}, "nodeFeatureRule": off}
    manifests = render(values, apis=(SERVICE_MONITOR, POD_MONITOR, RULE, FEATURE_RULE))
    kinds = {each["kind"] for each in manifests}
    assert kinds.isdisjoint({"ServiceMonitor", "PodMonitor", "PrometheusRule", "NodeFeatureRule"})


def test_alerts_arrive_as_they_are(render):
    rule = the(render({"metrics": {"rules": {"labels": {"release": "prometheus"}}}}, apis=(RULE,)), "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    assert rule["spec"] == yaml.safe_load((CHART / "files/rules/shoal.yaml").read_text())


def test_node_feature_rule_knows_the_gpus_by_their_pci_ids(render):
    rule = the(render(apis=(FEATURE_RULE,)), "NodeFeatureRule")
    ids = {}
    for each in rule["spec"]["rules"]:
        (feature,) = each["matchFeatures"]
        assert feature["matchExpressions"]["vendor"]["value"] == ["8086"]
        ids[each["labels"]["shoal.dev/platform"]] = feature["matchExpressions"]["device"]["value"]
    assert ids == {"lunar-lake": ["6420", "64a0"], "panther-lake": [f"b08{digit}" for digit in range(8)]}


def test_service_monitor_finds_the_service_of_the_operator(render):
    manifests = render(apis=(SERVICE_MONITOR,))
    service, monitor = the(manifests, "Service"), the(manifests, "ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [each["port"] for each in monitor["spec"]["endpoints"]] == [
        each["name"] for each in service["spec"]["ports"]
    ]
    pod = the(manifests, "Deployment")["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    ports = {each["name"]: each["containerPort"] for each in pod["spec"]["containers"][0]["ports"]}
    assert ports["metrics"] == OperatorSettings().metrics_port
    assert ports["health"] == OperatorSettings().health_port


def test_pod_monitor_finds_the_routers_that_the_operator_makes(render):
    monitor = the(render(apis=(POD_MONITOR,)), "PodMonitor")["spec"]
    assert monitor["namespaceSelector"] == {"any": True}
    made = yaml.safe_load_all((ROOT / "tests/unit/operator/golden/example.yaml").read_text())
    (router,) = [
        each["spec"]["template"]
        for each in made
        if each.get("kind") == "Deployment" and each["metadata"]["name"] == "llama-8b-router"
    ]
    assert monitor["selector"]["matchLabels"].items() <= router["metadata"]["labels"].items()
    assert set(monitor["podTargetLabels"]) <= router["metadata"]["labels"].keys()
    ports = {port["name"] for container in router["spec"]["containers"] for port in container["ports"]}
    assert {each["port"] for each in monitor["podMetricsEndpoints"]} <= ports
    values = NAMESPACED | {"watchNamespaces": ["team-a", "team-b"]}
    inside = the(render(values, apis=(POD_MONITOR,)), "PodMonitor")["spec"]
    assert inside["namespaceSelector"] == {"matchNames": ["team-a", "team-b"]}


def test_case_114_monitors_both_gpu_drivers_and_images_for_each_variant(render):
    """cascadia#28 asks for these. No mDNS: stages have DNS names (case 112)."""
    manifests = render({"images": {"stage": {"tag": "9-gpu"}}}, apis=(SERVICE_MONITOR, POD_MONITOR))
    assert {"ServiceMonitor", "PodMonitor"} <= {each["kind"] for each in manifests}
    assert environment(manifests)["SHOAL_STAGE_IMAGE"].endswith("/stage:9-gpu")
    assert RESOURCES[Device.GPU] == ("gpu.intel.com/xe", "gpu.intel.com/i915")


def test_dashboards_arrive_as_they_are_and_can_be_left_out(render):
    (held,) = [each for each in of_kind(render(), "ConfigMap") if each["metadata"]["name"].endswith("-dashboards")]
    assert held["metadata"]["labels"]["grafana_dashboard"] == "1"
    file = CHART / "files/dashboards/operator.json"
    assert json.loads(held["data"]["shoal-operator.json"]) == json.loads(file.read_text())
    assert of_kind(render({"metrics": {"dashboard": {"enabled": False}}}), "ConfigMap") == []


def test_the_page_is_open_to_its_pod_alone_until_there_are_keys(render):
    closed = render()
    ports = [port["port"] for rule in the(closed, "NetworkPolicy")["spec"]["ingress"] for port in rule["ports"]]
    assert ports == ["health", "metrics"]
    assert [each["metadata"]["name"] for each in of_kind(closed, "Service")] == ["shoal-operator"]
    assert environment(closed)["SHOAL_PAGE_KEYS"] == ""
    manifests = render({"page": {"apiKeysSecret": "page-keys", "service": {"type": "NodePort"}}})
    (service,) = [each for each in of_kind(manifests, "Service") if each["metadata"]["name"].endswith("-page")]
    pod = the(manifests, "Deployment")["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert service["spec"]["type"] == "NodePort"
    (container,) = pod["spec"]["containers"]
    named = {port["name"]: port["containerPort"] for port in container["ports"]}
    settings = OperatorSettings()
    assert named == {"metrics": settings.metrics_port, "health": settings.health_port, "page": settings.page_port}
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "page-keys"]
    assert environment(manifests)["SHOAL_PAGE_KEYS"] == f"{mount['mountPath']}/keys"
    policy = the(manifests, "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert {"port": "page"} in policy["ingress"][0]["ports"]
    off = render({"page": {"enabled": False, "apiKeysSecret": "page-keys"}})
    assert environment(off)["SHOAL_PAGE_PORT"] == "0"
    assert not [each for each in of_kind(off, "Service") if each["metadata"]["name"].endswith("-page")]


def agents(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = [each["metadata"].get("labels", {}).get("app.kubernetes.io/name") for each in manifests]
    return [each for name, each in zip(names, manifests, strict=True) if name == "shoal-agent"]


def test_the_agent_may_write_the_status_of_nodes_and_nothing_else(render):
    assert agents(render()) == []
    mine = agents(render({"agent": {"enabled": True}}))
    assert granted(the(mine, "ClusterRole")["rules"]) == {("", "nodes/status"): {"patch"}}
    assert of_kind(mine, "Role") == []
    assert agents(render(NAMESPACED | {"agent": {"enabled": True}})) == []
    account = the(mine, "ServiceAccount")["metadata"]
    policy = the(mine, "ValidatingAdmissionPolicy")
    (condition,) = policy["spec"]["matchConditions"]
    assert f"'system:serviceaccount:{account['namespace']}:{account['name']}'" in condition["expression"]
    assert the(mine, "ValidatingAdmissionPolicyBinding")["spec"]["policyName"] == policy["metadata"]["name"]


def test_the_agent_reads_the_pc_and_writes_nothing_to_it(render):
    values = {"agent": {"enabled": True, "devices": {"gpu.intel.com/xe_monitoring": 1}}}
    pod = the(agents(render(values)), "DaemonSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    ours = {each["name"] for each in pod["volumes"] if "hostPath" in each}
    mounts = [each for each in container["volumeMounts"] if each["name"] in ours]
    assert len(mounts) == 2
    assert all(each["readOnly"] for each in mounts)
    assert container["resources"]["limits"]["gpu.intel.com/xe_monitoring"] == 1
    assert "memory" in container["resources"]["limits"]


def test_the_agents_options_are_those_of_the_program(render):
    mine = agents(render({"agent": {"enabled": True}}))
    (container,) = the(mine, "DaemonSet")["spec"]["template"]["spec"]["containers"]
    options = agent_parser().parse_args(container["command"][4:])
    assert (options.patience, options.free_after) == (Patience().factor, Patience().free_seconds)
    service = the(mine, "Service")["metadata"]
    assert options.peers == f"{service['name']}.{service['namespace']}.svc.cluster.local:9090"


def test_agents_run_on_the_pcs_or_where_they_are_told(render):
    def pod(**values: Any) -> dict[str, Any]:
        manifests = agents(render({"agent": {"enabled": True, **values}}))
        found: dict[str, Any] = the(manifests, "DaemonSet")["spec"]["template"]["spec"]
        return found

    (term,) = pod()["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": PLATFORM_LABEL, "operator": "Exists"}]
    told = pod(nodeSelector={"office": "yes"}, tolerations=[{"operator": "Exists"}])
    assert told["nodeSelector"] == {"office": "yes"}
    assert "affinity" not in told
    assert told["tolerations"] == [{"operator": "Exists"}]


# Read by list and watch, changed by apply, removed by delete: what the operator does with each of its children.
CHILD_VERBS = {"list", "watch", "create", "patch", "delete"}


def granted(rules: list[dict[str, Any]]) -> dict[tuple[str, str], set[str]]:
    """Verbs by API group and resource."""
    found: dict[tuple[str, str], set[str]] = {}
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def test_case_105_rights_are_those_of_the_kinds_that_the_operator_uses(render):
    manifests = render()
    (role,) = [each for each in of_kind(manifests, "ClusterRole") if each["metadata"]["name"].endswith("-operator")]
    wanted = {(kind.group, kind.plural): set(CHILD_VERBS) for kind in kinds.CHILDREN}
    for kept in (kinds.CLAIM, kinds.SECRET):
        wanted[(kept.group, kept.plural)].discard("delete")
    # The volume of a user's claim says which nodes can mount it.
    wanted[("", "persistentvolumeclaims")].add("get")
    wanted[("", "persistentvolumes")] = {"get"}
    # Routers get a Role with this verb, and nobody can grant what they do not hold.
    wanted[("", "configmaps")].add("get")
    for read in (kinds.SHARDED_MODEL, kinds.NODE, kinds.POD):
        wanted[(read.group, read.plural)] = {"list", "watch"}
    # The router's kubelet brings it a changed plan when its pod changes.
    wanted[("", "pods")].add("patch")
    wanted[("shoal.dev", "shardedmodels/status")] = {"patch"}
    wanted[("", "events")] = {"create"}
    # How far a compile Job is stands in its log.
    wanted[("", "pods/log")] = {"get"}
    # kopf watches for the kind itself.
    wanted[("apiextensions.k8s.io", "customresourcedefinitions")] = {"list", "watch"}
    assert granted(role["rules"]) == wanted
    lease = the(manifests, "Role")
    assert granted(lease["rules"]) == {("coordination.k8s.io", "leases"): {"get", "create", "update"}}


def test_rights_in_a_namespace_are_the_same_without_what_is_cluster_wide(render):
    (everywhere,) = [
        each for each in of_kind(render(), "ClusterRole") if each["metadata"]["name"].endswith("-operator")
    ]
    (here,) = [each for each in of_kind(render(NAMESPACED), "Role") if each["metadata"]["name"].endswith("-operator")]
    wanted = granted(everywhere["rules"])
    assert wanted.pop(("", "nodes")) == {"list", "watch"}
    assert wanted.pop(("", "persistentvolumes")) == {"get"}
    assert wanted.pop(("apiextensions.k8s.io", "customresourcedefinitions")) == {"list", "watch"}
    assert granted(here["rules"]) == wanted


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"imagepullSecrets": ["a"]}, "additional properties 'imagepullSecrets' not allowed"),
        ({"mode": "Namespace"}, "'Cluster', 'Namespaced'"),
        ({"mode": "Namespaced"}, "at '/nodes': minItems: got 0, want 1"),
        ({"nodes": [{"name": "pc-1"}]}, "at '/nodes/0': missing property 'memory'"),
        ({"nodes": [NODE | {"devices": ["TPU"]}]}, "at '/nodes/0/devices/0'"),
        ({"nodes": [NODE | {"memory": {"total": "much", "free": "1Gi"}}]}, "at '/nodes/0/memory/total'"),
        ({"images": {"stage": {"repository": "r/stage:1@x"}}}, "at '/images/stage/repository'"),
        ({"images": {"stage": {"digest": "sha256:abc"}}}, "at '/images/stage/digest'"),
        ({"imagePullPolicy": "Sometimes"}, "at '/imagePullPolicy'"),
        ({"imagePullSecrets": [{"name": "registry"}]}, "at '/imagePullSecrets/0': got object, want string"),
        ({"operator": {"logLevel": "LOUD"}}, "at '/operator/logLevel'"),
        ({"operator": {"workers": 0}}, "at '/operator/workers': minimum: got 0, want 1"),
        ({"operator": {"nodeCache": "var/lib"}}, "at '/operator/nodeCache'"),
        ({"resources": {"limits": {"memory": "512 MB"}}}, "at '/resources/limits/memory'"),
        ({"resources": {"limits": {"memroy": "512Mi"}}}, "invalid propertyName 'memroy'"),
        ({"priorityClass": {"value": 2000000000}}, "at '/priorityClass/value'"),
        ({"watchNamespaces": ["Team A"]}, "at '/watchNamespaces/0'"),
    ],
)
def test_values_that_make_no_sense_are_refused(run_helm, values, says):
    done = run_helm("template", values)
    assert done.returncode != 0
    assert says in done.stderr


@pytest.mark.parametrize(
    ("release", "name"), [("shoal", "shoal-operator"), ("my-shoal", "my-shoal-operator"), ("llm", "llm-shoal-operator")]
)
def test_names_hold_the_release_and_the_chart_once(helm_program, tmp_path, release, name):
    done = subprocess.run(
        [helm_program, "template", release, str(CHART), "--show-only", "templates/deployment.yaml"],
        env={"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert yaml.safe_load(done.stdout)["metadata"]["name"] == name
