"""CRDs: installed, and waited for until the API server serves their kinds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import yaml

from testcluster.api import Api, Manifest, Refused
from testcluster.processes import wait_until

CRDS: Final = "apiextensions.k8s.io/v1", "customresourcedefinitions"
_DEADLINE_S: Final = 60.0


def install_crd(api: Api, files: Iterable[Path]) -> str:
    """Apply the CRDs and wait until each is served; returns the name of the last one."""
    name = ""
    for file in files:
        for manifest in yaml.safe_load_all(file.read_text()):
            api.apply(manifest)
            name = manifest["metadata"]["name"]
            wait_until_served(api, manifest)
    if not name:
        raise FileNotFoundError("no CRD to install: crds/ is empty, run `make generate`")
    return name


def remove_crd(api: Api, name: str) -> None:
    """Delete a CRD, with everything of its kind, and wait until it is gone."""
    api.delete(*CRDS, name)
    wait_until(lambda: api.find(*CRDS, name) is None, what=f"the end of CRD {name}", deadline_s=_DEADLINE_S)


def wait_until_served(api: Api, crd: Manifest) -> None:
    """Wait until a CRD is Established and its kind can be listed: right after, the API server may still say 429."""

    def served() -> bool:
        state = api.get(*CRDS, crd["metadata"]["name"])
        conditions = {each["type"]: each for each in state.get("status", {}).get("conditions") or []}
        broken = conditions.get("NonStructuralSchema", {})
        if broken.get("status") == "True":
            raise Refused(422, "NonStructuralSchema", broken["message"])
        if conditions.get("Established", {}).get("status") != "True":
            return False
        version = f"{crd['spec']['group']}/{crd['spec']['versions'][0]['name']}"
        try:
            api.list(version, crd["spec"]["names"]["plural"])
        except Refused as refusal:
            if refusal.code in (404, 429):
                return False
            raise
        return True

    wait_until(served, what=f"the CRD {crd['metadata']['name']}", deadline_s=_DEADLINE_S)
