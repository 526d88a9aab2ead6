"""A pytest plugin: an office of PCs for the whole session, and the commands that its administrator types.

What is missing on this machine is said in the reason of the skip; with CI=true the tests fail instead.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Final

import pytest

from testcluster import binaries, images, office
from testcluster.kubectl import Command
from testcluster.office import Office

GIB: Final = 1 << 30
MEMORIES: Final = (4 * GIB, 3 * GIB, 5 * GIB // 2, 2 * GIB)
"""What the four PCs offer to pods."""


def _unless(reason: str) -> None:
    """Skip for the reason, if there is one; in CI a level that silently does not run would be a lie."""
    if reason and os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason, pytrace=False)
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def built() -> None:
    """The product's images, built from this checkout."""
    _unless(images.impossible())
    for image in images.ALL:
        images.build(image)


@pytest.fixture(scope="session")
def an_office(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """Four PCs in a cluster, with nothing of shoal in it. Its logs stay when a test failed."""
    _unless(office.impossible())
    folder = tmp_path_factory.mktemp("office")
    with office.running(folder, MEMORIES) as running:
        yield running
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    if request.session.testsfailed == 0:
        shutil.rmtree(folder)
    elif reporter is not None:
        reporter.write_line(f"logs of the office: {folder}")
    left = office.left_behind()
    assert not left, f"the office has left behind: {', '.join(left)}"


@pytest.fixture(scope="session")
def office_kubectl(an_office: Office, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """kubectl as the office's administrator."""
    return Command(an_office.plane.kubectl, an_office.plane.admin, tmp_path_factory.mktemp("kubectl"))


@pytest.fixture(scope="session")
def office_helm(an_office: Office, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """helm as the office's administrator."""
    program = binaries.ensure(binaries.HELM) / "helm"
    return Command(program, an_office.plane.admin, tmp_path_factory.mktemp("helm"))
