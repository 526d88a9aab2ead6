"""What every builder is given, and what every child has in common: owner, labels, hash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.plan.devices import PROFILES, KvElement
from shoal.plan.document import Device
from shoal.plan.facts import ModelFacts
from shoal.resource import ExecutionMode, ShardedModel
from shoal.resource.planning import kv_element_of
from shoal_operator import names
from shoal_operator.cluster.kinds import Kind, Object
from shoal_operator.settings import OperatorSettings


@dataclass(frozen=True, slots=True)
class Intent:
    """A ShardedModel that the API server holds, and the settings of this cluster."""

    model: ShardedModel
    settings: OperatorSettings

    @property
    def name(self) -> str:
        """The ShardedModel's name."""
        return self.model.metadata.name

    @property
    def namespace(self) -> str:
        """Its namespace: all children are there."""
        return self.model.metadata.namespace or "default"

    @property
    def stage_image(self) -> str:
        """Image of stages and store."""
        return self.model.spec.image.stage or self.settings.stage_image

    @property
    def job_image(self) -> str:
        """Image of the Jobs that make the model known: only a source needs the compiler and its libraries."""
        if self.origin == "volume":
            return self.stage_image
        return self.model.spec.image.compile or self.settings.compile_image

    @property
    def router_image(self) -> str:
        """Image of the router."""
        return self.model.spec.image.router or self.settings.router_image

    @property
    def exact(self) -> bool:
        """Whether stages compute in F32."""
        return self.model.spec.execution.mode is ExecutionMode.EXACT

    def kv_element(self, device: Device) -> KvElement:
        """How keys and values are stored on a device: as the planner has counted them."""
        return kv_element_of(self.model.spec) or PROFILES[device].kv

    @property
    def origin(self) -> str:
        """Where the model lies: in the store (`source`) or on a volume of the user's (`volume`)."""
        return "source" if self.model.spec.model.source is not None else "volume"

    def owned(self, kind: Kind, name: str, role: str, body: Mapping[str, Any], **more: str) -> Object:
        """A child of this kind with the ShardedModel as its controller: it goes when the ShardedModel goes."""
        obj: Object = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": names.labels(self.name, role, **more),
                "ownerReferences": [
                    {
                        "apiVersion": self.model.api_version,
                        "kind": self.model.kind,
                        "name": self.name,
                        "uid": self.model.metadata.uid or "",
                        "controller": True,
                        "blockOwnerDeletion": False,
                    }
                ],
            },
            **body,
        }
        return hashed(obj)

    def context_for(self, facts: ModelFacts) -> int:
        """Tokens of one sequence at most."""
        wanted = self.model.spec.scheduler.max_context
        return wanted if wanted is not None else min(facts.shape.max_context, 4096)


def annotated(obj: Object, annotations: Mapping[str, str]) -> Object:
    """The object with further annotations, and a hash that counts them."""
    metadata = obj["metadata"]
    return hashed({**obj, "metadata": {**metadata, "annotations": {**annotations, **metadata.get("annotations", {})}}})


def hashed(obj: Object) -> Object:
    """The object with the hash of all of it in an annotation; `apply` compares nothing else."""
    metadata = obj["metadata"]
    annotations = {key: value for key, value in metadata.get("annotations", {}).items() if key != names.HASH_ANNOTATION}
    bare = {**obj, "metadata": {**metadata, "annotations": annotations}}
    return {
        **obj,
        "metadata": {**metadata, "annotations": {**annotations, names.HASH_ANNOTATION: names.digest_of(bare)[:16]}},
    }
