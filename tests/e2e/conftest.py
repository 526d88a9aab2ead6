"""The end-to-end tests: one office for all of them, with the operator installed as its administrator would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from testcluster.kubectl import Command
from testcluster.office import Office
from testcluster.serving_office import SYSTEM, Serving


@pytest.fixture(scope="session")
def office(
    an_office: Office, office_kubectl: Command, office_helm: Command, tmp_path_factory: pytest.TempPathFactory
) -> Serving:
    """The office and its administrator's commands; nothing is installed."""
    serving = Serving(an_office, office_kubectl, office_helm, tmp_path_factory.mktemp("values"))
    office_kubectl("create", "namespace", serving.namespace)
    return serving


@contextmanager
def _installed(office: Serving) -> Iterator[Serving]:
    office.install()
    office.label_all()
    yield office
    office.kubectl(
        "delete", "shardedmodels", "--all", "--namespace", office.namespace, "--ignore-not-found", check=False
    )
    office.wait_for_nothing()
    office.helm("uninstall", "shoal", "--namespace", SYSTEM, "--wait", check=False)


@pytest.fixture
def installed(office: Serving) -> Iterator[Serving]:
    """The chart installed and every PC labelled; gone afterwards, with everything that was served."""
    with _installed(office) as serving:
        yield serving


@pytest.fixture(scope="module")
def installed_for_module(office: Serving) -> Iterator[Serving]:
    """The same, for all tests of a file."""
    with _installed(office) as serving:
        yield serving
