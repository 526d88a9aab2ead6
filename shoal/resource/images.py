"""spec.image: which container images the pods run."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from shoal.resource.bounds import ImageReference, ObjectName, Unique
from shoal.resource.rules import Object


class PullPolicy(StrEnum):
    """When a node pulls an image, as in a pod."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class SecretName(Object):
    """A Secret in the ShardedModel's namespace."""

    name: ObjectName
    """Name of the Secret."""


class Images(Object):
    """Container images. They matter in a cluster only; `shoal run` starts processes of the installed package."""

    stage: ImageReference | None = None
    """Image of stages and of the store. Without it: the one the operator was installed with."""

    compile: ImageReference | None = None
    """Image of the Jobs that compile a source. Without it: the one the operator was installed with."""

    router: ImageReference | None = None
    """Image of the router. Without it: the one the operator was installed with."""

    pull_policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    """When a node pulls the images."""

    pull_secrets: Annotated[
        tuple[SecretName, ...],
        Field(max_length=16),
        Unique("name"),
    ] = ()
    """Secrets for the registry; every pod that is made for this model gets them."""
