"""Every object that the operator makes, as the golden files have them, passes the API server's own validation."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from testcluster.api import Api

GOLDEN = Path(__file__).parents[1] / "unit/operator/golden"
FILES = sorted(GOLDEN.glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_child_passes_a_server_side_dry_run(admin: Api, namespace: str, crd: str, file: Path) -> None:
    documents = [each for each in yaml.safe_load_all(file.read_text()) if "kind" in each]
    assert len(documents) >= 10
    for document in documents:
        document["metadata"]["namespace"] = namespace
        if document["kind"] == "Secret":
            document["data"] = dict.fromkeys(document["data"], "Li4u")
        admin.apply(document, namespace=namespace, dry_run=True)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_case_102_the_status_schema_has_every_field(admin: Api, namespace: str, crd: str, file: Path) -> None:
    (document,) = [each for each in yaml.safe_load_all(file.read_text()) if "kind" not in each]
    body = {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "ShardedModel",
        "metadata": {"name": "llama-8b"},
        "spec": {"model": {"volume": {"hostPath": {"path": "/srv/model"}}}},
    }
    admin.create(body, namespace=namespace)
    admin.patch(
        "shoal.dev/v1alpha1", "shardedmodels/status", "llama-8b", {"status": document["status"]}, namespace=namespace
    )
    stored = admin.get("shoal.dev/v1alpha1", "shardedmodels", "llama-8b", namespace=namespace)
    assert stored["status"] == document["status"]
