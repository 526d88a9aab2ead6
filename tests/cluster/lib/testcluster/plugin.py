"""The pytest plugin: fixtures of a real control plane, and what happens when it cannot be had.

Tests that ask for one of these fixtures carry the marker `cluster` by themselves. When the programs have to be built
first, that happens once before the first test, outside of any test's time limit. Without Go those tests are skipped
with the reason; where the environment says CI=true they fail, because a level that silently does not run is not green.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from testcluster import binaries, chart
from testcluster.api import Api
from testcluster.audit import AuditLog
from testcluster.control_plane import ControlPlane, running
from testcluster.crds import install_crd, remove_crd
from testcluster.kubeconfig import Kubeconfig
from testcluster.kubectl import Command
from testcluster.kubelet import Kubelet
from testcluster.nodes import Nodes
from testcluster.processes import wait_until
from testcluster.storage import STORAGE_CLASS, Storage

ROOT = Path(__file__).parents[4]
_NEEDS_BINARIES = {
    "control_plane": binaries.CONTROL_PLANE,
    "helm_program": binaries.HELM,
    "promtool": binaries.PROMETHEUS,
}
_unavailable = pytest.StashKey[dict[str, str]]()
_DEADLINE_S = 30.0


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses the cluster, before -m is looked at."""
    for item in items:
        if _sets(item):
            item.add_marker(pytest.mark.cluster)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what the selected tests need; what cannot be had is remembered for the fixtures."""
    session.config.stash[_unavailable] = {}
    if session.config.option.collectonly:
        return
    wanted = {name: each for item in session.items for name, each in _sets(item).items()}
    for fixture, binary_set in wanted.items():
        todo = binaries.missing(binary_set)
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if todo and reporter is not None and shutil.which("go"):
            reporter.write_line(f"building {', '.join(todo)} from Go modules, once (some ten minutes) ...")
        try:
            binaries.ensure(binary_set)
        except (binaries.GoIsMissing, binaries.BuildFailed) as error:
            session.config.stash[_unavailable][fixture] = f"tests on a real control plane: {error}"


def _sets(item: pytest.Item) -> dict[str, binaries.BinarySet]:
    names = getattr(item, "fixturenames", ())
    return {name: each for name, each in _NEEDS_BINARIES.items() if name in names}


def _programs(request: pytest.FixtureRequest, fixture: str) -> Path:
    """The folder of the programs; ends the test when they are not there."""
    binary_set = _NEEDS_BINARIES[fixture]
    reason = request.config.stash[_unavailable].get(fixture)
    if reason is None:
        return binaries.ensure(binary_set)
    if os.environ.get("CI", "").lower() == "true" or "could not build" in reason:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def helm_program(request: pytest.FixtureRequest) -> Path:
    """The helm program."""
    return _programs(request, "helm_program") / "helm"


@pytest.fixture(scope="session")
def promtool(request: pytest.FixtureRequest) -> Path:
    """Prometheus' checker of rules and queries."""
    return _programs(request, "promtool") / "promtool"


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A running control plane, shared by the session. Its folder stays when a test failed, for its logs."""
    programs = _programs(request, "control_plane")
    folder = tmp_path_factory.mktemp("cluster")
    with running(programs, folder) as plane:
        yield plane
    if request.session.testsfailed == 0:
        shutil.rmtree(folder)
    else:
        reporter = request.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(f"logs of the control plane: {folder}")


@pytest.fixture(scope="session")
def admin(control_plane: ControlPlane) -> Iterator[Api]:
    """The API server as cluster-admin: for what a test prepares and looks at, never for what is tested."""
    with Api(control_plane.admin) as api:
        yield api


@pytest.fixture
def audit(control_plane: ControlPlane) -> AuditLog:
    """The audit log: counts writes by user."""
    return control_plane.audit


@pytest.fixture
def namespace(request: pytest.FixtureRequest, admin: Api) -> Iterator[str]:
    """A namespace of the test's own, with its default ServiceAccount; deleted afterwards."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    name = f"{words[:40].strip('-')}-{uuid.uuid4().hex[:6]}"
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    wait_until(
        lambda: admin.find("v1", "serviceaccounts", "default", namespace=name),
        what=f"the default ServiceAccount of {name}",
        deadline_s=_DEADLINE_S,
    )
    yield name
    admin.delete("v1", "namespaces", name)


@pytest.fixture(scope="session")
def crd(admin: Api) -> str:
    """The ShardedModel's CRD of crds/, ready to use; returns its name."""
    return install_crd(admin, (ROOT / "crds").glob("*.yaml"))


@pytest.fixture
def no_crd(admin: Api) -> Iterator[None]:
    """A cluster that has no CRD of shoal until the test installs it; other tests of the session find it again."""
    files = list((ROOT / "crds").glob("*.yaml"))
    name = yaml.safe_load(files[0].read_text())["metadata"]["name"]
    remove_crd(admin, name)
    yield
    remove_crd(admin, name)
    install_crd(admin, files)


@pytest.fixture
def nodes(admin: Api) -> Iterator[Nodes]:
    """Makes Node objects, and removes them afterwards."""
    wait_until(lambda: not _end_left_pods(admin), what="the end of earlier tests' pods", deadline_s=_DEADLINE_S)
    made = Nodes(admin)
    yield made
    made.remove_all()


def _end_left_pods(admin: Api) -> int:
    """End the pods of namespaces that are being deleted, at once; returns how many there were.

    No kubelet is left to end them. Until then they hold the devices of their node, and of the next one of its name.
    """
    ending = {
        each["metadata"]["name"] for each in admin.list("v1", "namespaces") if each["metadata"].get("deletionTimestamp")
    }
    left = [pod["metadata"] for pod in admin.list("v1", "pods") if pod["metadata"]["namespace"] in ending]
    for metadata in left:
        admin.delete("v1", "pods", metadata["name"], namespace=metadata["namespace"], grace_s=0)
    return len(left)


@pytest.fixture
def kubelet(control_plane: ControlPlane) -> Iterator[Kubelet]:
    """Plays the kubelets: pods on Ready nodes become ready, Jobs succeed. `kubelet.decide(...)` makes it otherwise."""
    with Kubelet(control_plane.admin) as playing:
        yield playing


@pytest.fixture
def storage(control_plane: ControlPlane) -> Iterator[str]:
    """Plays the provisioner of a default StorageClass: claims get volumes on their first pod's node; its name."""
    with Storage(control_plane.admin):
        yield STORAGE_CLASS


@pytest.fixture
def kubectl(control_plane: ControlPlane, tmp_path: Path) -> Command:
    """kubectl as cluster-admin."""
    return Command(program=control_plane.kubectl, kubeconfig=control_plane.admin, home=tmp_path)


@pytest.fixture
def helm(helm_program: Path, control_plane: ControlPlane, tmp_path: Path) -> Command:
    """helm as cluster-admin."""
    return Command(program=helm_program, kubeconfig=control_plane.admin, home=tmp_path)


@pytest.fixture
def chart_service_account(
    request: pytest.FixtureRequest, helm: Command, admin: Api, namespace: str, tmp_path: Path
) -> Iterator[Kubeconfig]:
    """The operator's ServiceAccount in the test's namespace, with the chart's rights: what is tested acts as it.

    The chart's values are those of the marker `chart_values(mode="Namespaced", ...)`, or the default ones.
    """
    marker = request.node.get_closest_marker("chart_values")
    manifests = chart.rendered(helm, ROOT / "charts/shoal", namespace, dict(marker.kwargs) if marker else {}, tmp_path)
    yield chart.grant(admin, manifests, namespace, tmp_path)
    chart.withdraw(admin, manifests)
