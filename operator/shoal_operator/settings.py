"""The operator's settings, from the environment: the chart sets every variable, each has a default that works.

They hold what a cluster's administrator decides once (images, storage, which namespaces); what the user of a model
decides stands in the ShardedModel.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from shoal import __version__
from shoal.errors import UsageError

PREFIX: Final = "SHOAL_"


def _words(value: Any) -> Any:
    """`a, b` as the environment has it -> the words."""
    return tuple(word.strip() for word in value.split(",") if word.strip()) if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Groups = Annotated[tuple[int, ...], BeforeValidator(_words)]


class OperatorSettings(BaseModel):
    """Field `watch_namespaces` is the variable SHOAL_WATCH_NAMESPACES, and so on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: str = Field(default="shoal-system", description="where the operator runs: its Lease is there")
    pod_name: str = Field(default="shoal-operator", description="its name in the Lease and in events")
    watch_namespaces: Words = Field(default=(), description="namespaces to serve; empty: all of them")
    nodes_file: Path | None = Field(
        default=None, description="a nodes file instead of Node objects, where the operator may not read those"
    )

    stage_image: str = f"ghcr.io/shoal-dev/stage:{__version__}"
    compile_image: str = f"ghcr.io/shoal-dev/compile:{__version__}"
    router_image: str = f"ghcr.io/shoal-dev/router:{__version__}"
    image_pull_secrets: Words = Field(default=(), description="for every pod, beside those of the ShardedModel")
    priority_class: str = Field(default="", description="of stage pods that name none; empty: the cluster's default")
    node_cache: str = Field(
        default="/var/lib/shoal",
        description="directory of each node that keeps pulled blocks; empty: gone with the pod",
    )
    store_size: str = Field(default="64Gi", description="size of the store's claim: checkpoint and compiled model")
    compile_memory: str = Field(
        default="", description="of the compile Job; empty: what the planner estimates from the source's sizes"
    )
    storage_class: str = Field(default="", description="of the store's claim; empty: the cluster's default")
    supplemental_groups: Groups = Field(default=(), description="groups of stage pods: the nodes' render group")
    cluster_domain: str = "cluster.local"
    otlp_endpoint: str = Field(default="", description="collector of traces (OTLP over HTTP); empty: no traces")

    resync_seconds: float = Field(default=600.0, gt=0, description="everything is read and compared again this often")
    workers: int = Field(default=4, ge=1, le=64, description="ShardedModels that are reconciled at the same time")
    leader_election: bool = True
    lease_seconds: float = Field(default=15.0, ge=3)
    metrics_port: int = Field(default=8080, ge=0, le=65535)
    health_port: int = Field(default=8081, ge=0, le=65535)
    page_port: int = Field(default=8082, ge=0, le=65535, description="the page of all ShardedModels; 0: none")
    page_keys: Path | None = Field(
        default=None, description="API keys of the page; without them only this pod itself may open it"
    )
    log_format: Literal["json", "text"] = "json"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> OperatorSettings:
        """Read SHOAL_* variables; those of other programs of shoal are skipped. Raises UsageError for a bad value."""
        given = {
            name: environment[PREFIX + name.upper()]
            for name in cls.model_fields
            if environment.get(PREFIX + name.upper(), "") != ""
        }
        # An empty value is a choice for these: no priority class, no node cache.
        given.update(
            {name: "" for name in ("node_cache",) if environment.get(PREFIX + name.upper()) == ""},
        )
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = f"{PREFIX}{str(first['loc'][0]).upper()}"
            raise UsageError(f"{name}={environment.get(name, '')!r} cannot be used: {first['msg']}") from error
