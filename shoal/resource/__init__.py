"""ShardedModel: what a person writes to get an LLM endpoint, as pydantic types, and the CRD generated from them.

Where it stands: `load` turns a file (or an object from the API server) into a `ShardedModel`; planner, runtime and
operator read nothing else of the user's. `crd` turns the same types into crds/shardedmodels.shoal.dev.yaml, so that
the API server refuses exactly what `shoal run` refuses.
"""

from shoal.resource.images import Images, PullPolicy, SecretName
from shoal.resource.load import load_sharded_model, parse_sharded_model, sharded_model_from_object
from shoal.resource.manners import Day, WhenInUse, WorkingHours
from shoal.resource.nodes import NodeEntry, NodesFile, load_nodes, parse_nodes
from shoal.resource.planning import kv_element_of, node_facts_of, plan_spec_of
from shoal.resource.router import (
    ApiKeysSecret,
    ComputeResources,
    Ingress,
    ResourceAmounts,
    Router,
    Service,
    ServiceType,
)
from shoal.resource.serving import Draft, KvPrecision, Recovery, Scheduler, Speculative, SpeculativeMode
from shoal.resource.sharded_model import (
    API_VERSION,
    GROUP,
    KIND,
    PLURAL,
    VERSION,
    Execution,
    ExecutionMode,
    Metadata,
    ShardedModel,
    ShardedModelSpec,
)
from shoal.resource.source import HostPathVolume, ImageVolume, ModelSpec, PvcVolume, Source, Volume
from shoal.resource.stages import (
    LayerRange,
    ManualStage,
    NodeLimit,
    Placement,
    Stages,
    StagesMode,
    Toleration,
)
from shoal.resource.status import Condition, ShardedModelStatus

__all__ = [
    "API_VERSION",
    "GROUP",
    "KIND",
    "PLURAL",
    "VERSION",
    "ApiKeysSecret",
    "ComputeResources",
    "Condition",
    "Day",
    "Draft",
    "Execution",
    "ExecutionMode",
    "HostPathVolume",
    "ImageVolume",
    "Images",
    "Ingress",
    "KvPrecision",
    "LayerRange",
    "ManualStage",
    "Metadata",
    "ModelSpec",
    "NodeEntry",
    "NodeLimit",
    "NodesFile",
    "Placement",
    "PullPolicy",
    "PvcVolume",
    "Recovery",
    "ResourceAmounts",
    "Router",
    "Scheduler",
    "SecretName",
    "Service",
    "ServiceType",
    "ShardedModel",
    "ShardedModelSpec",
    "ShardedModelStatus",
    "Source",
    "Speculative",
    "SpeculativeMode",
    "Stages",
    "StagesMode",
    "Toleration",
    "Volume",
    "WhenInUse",
    "WorkingHours",
    "kv_element_of",
    "load_nodes",
    "load_sharded_model",
    "node_facts_of",
    "parse_nodes",
    "parse_sharded_model",
    "plan_spec_of",
    "sharded_model_from_object",
]
