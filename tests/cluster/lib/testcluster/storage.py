"""Plays the provisioner: claims get volumes, as k3s's local-path makes them. No disk is behind a volume.

A control plane binds claims to volumes but makes none: without a provisioner every claim stays Pending, and with it
every pod that uses it. The default StorageClass made here waits for the first pod of a claim. The scheduler then picks
that pod's node and writes it on the claim, the volume controller asks the provisioner of the class, and this one makes
a volume that only that node can mount. The rest is the control plane's own work: binding, scheduling later pods to
the volume's node, keeping a claim for as long as a pod uses it. What no claim holds any more is deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import httpx

from testcluster.api import Manifest, Refused
from testcluster.background import ROUND_S, Background
from testcluster.kubeconfig import Kubeconfig

STORAGE_CLASS: Final = "test-local"
PROVISIONER: Final = "shoal.dev/test-local"
_CLASSES: Final = "storage.k8s.io/v1", "storageclasses"
_VOLUMES: Final = "v1", "persistentvolumes"
_ASKED: Final = "volume.kubernetes.io/storage-provisioner"
_NODE: Final = "volume.kubernetes.io/selected-node"
_MADE_BY: Final = "pv.kubernetes.io/provisioned-by"


class Storage(Background):
    """The default StorageClass and its provisioner, while used as a context manager.

    `make_folder` is told node and path of each volume: where there are real disks, it makes a directory there.
    """

    def __init__(self, kubeconfig: Kubeconfig, make_folder: Callable[[str, str], None] | None = None) -> None:
        super().__init__(kubeconfig)
        self._make_folder = make_folder

    def __enter__(self) -> Self:
        self.api.apply(_storage_class())
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.api.delete(*_CLASSES, STORAGE_CLASS)
        # A volume that is still claimed goes when its claim does.
        for volume in self._volumes():
            self.api.delete(*_VOLUMES, volume["metadata"]["name"])
        super().__exit__(kind, error, trace)

    def round(self) -> None:
        """Delete what was given back, and make what is asked for."""
        for volume in self._volumes():
            if volume["status"].get("phase") == "Released":
                self.api.delete(*_VOLUMES, volume["metadata"]["name"])
        for change, claim in self.api.watch("v1", "persistentvolumeclaims", deadline_s=ROUND_S):
            if self.stopping:
                return
            if change != "DELETED" and _is_asked_for(claim):
                self._make(claim)

    def _make(self, claim: Manifest) -> None:
        volume = _volume(claim)
        if self._make_folder is not None:
            self._make_folder(claim["metadata"]["annotations"][_NODE], volume["spec"]["hostPath"]["path"])
        try:
            self.api.create(volume)
        except Refused as refusal:
            # Made already, and not bound yet when the claim changed again.
            if refusal.code != httpx.codes.CONFLICT:
                raise

    def _volumes(self) -> list[Manifest]:
        volumes = self.api.list(*_VOLUMES)
        return [each for each in volumes if each["metadata"].get("annotations", {}).get(_MADE_BY) == PROVISIONER]


def _is_asked_for(claim: Manifest) -> bool:
    """Whether the control plane asks this provisioner for a volume on a node that it has picked."""
    metadata = claim["metadata"]
    annotations = metadata.get("annotations", {})
    bound = claim["spec"].get("volumeName") or metadata.get("deletionTimestamp")
    return not bound and annotations.get(_ASKED) == PROVISIONER and _NODE in annotations


def _storage_class() -> Manifest:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": STORAGE_CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def _volume(claim: Manifest) -> Manifest:
    metadata, spec = claim["metadata"], claim["spec"]
    name = f"pvc-{metadata['uid']}"
    node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [metadata["annotations"][_NODE]]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {_MADE_BY: PROVISIONER}},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "storageClassName": spec["storageClassName"],
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "hostPath": {"path": f"/var/lib/test-local/{name}", "type": "DirectoryOrCreate"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [node]}]}},
        },
    }
