"""The CustomResourceDefinition, generated from the types: `python -m shoal.resource.crd [--check]`.

crds/shardedmodels.shoal.dev.yaml is committed; a test generates it anew and compares.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import yaml

from shoal.resource.schema import structural_schema
from shoal.resource.sharded_model import GROUP, KIND, PLURAL, VERSION, ShardedModel, ShardedModelSpec
from shoal.resource.status import ShardedModelStatus

HEADER = "# Generated from shoal/resource by `python -m shoal.resource.crd`; edit the types, not this file.\n"
CRD_PATH = Path(__file__).resolve().parents[2] / "crds" / f"{PLURAL}.{GROUP}.yaml"

_READY = '.status.conditions[?(@.type=="Ready")]'
_COLUMNS = (
    # name, type, path, shown only with -o wide
    ("READY", "string", f"{_READY}.status", False),
    ("REASON", "string", f"{_READY}.reason", False),
    ("STAGES", "string", ".status.stages", False),
    ("URL", "string", ".status.url", False),
    ("TOK/S", "integer", ".status.plan.tokensPerSecond", True),
    ("MEASURED", "number", ".status.measured.tokensPerSecond", True),
    ("DEVICE", "string", ".status.devices", True),
    ("PLAN", "string", ".status.plan.summary", True),
    ("AGE", "date", ".metadata.creationTimestamp", False),
)


class _PlainDumper(yaml.SafeDumper):
    """Writes equal parts out each time: anchors are YAML that few people read."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        return True


def crd() -> dict[str, Any]:
    """The CustomResourceDefinition as plain data."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["smodel"],
                "categories": ["shoal"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _object_schema()},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path} | ({"priority": 1} if wide else {})
                        for name, kind, path, wide in _COLUMNS
                    ],
                }
            ],
        },
    }


def _object_schema() -> dict[str, Any]:
    """The object's schema. Only its own rules and the two halves are ours; metadata is the API server's."""
    return {
        "type": "object",
        "description": " ".join((ShardedModel.__doc__ or "").split()),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural_schema(ShardedModelSpec, defaults=True),
            "status": structural_schema(ShardedModelStatus, defaults=False),
        },
        "x-kubernetes-validations": [{"rule": each.cel, "message": each.message} for each in ShardedModel.RULES],
    }


def crd_yaml() -> str:
    """The CustomResourceDefinition as the committed file has it."""
    return HEADER + yaml.dump(crd(), Dumper=_PlainDumper, sort_keys=False, width=120, allow_unicode=True)


def main(arguments: list[str] | None = None) -> int:
    """Write the file, or with --check compare it; 1 when it differs."""
    parser = argparse.ArgumentParser(prog="python -m shoal.resource.crd", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit code 1 when the file is out of date")
    parser.add_argument("--output", type=Path, default=CRD_PATH, help="default: %(default)s")
    options = parser.parse_args(arguments)
    path: Path = options.output
    wanted = crd_yaml()
    if options.check:
        if path.is_file() and path.read_text(encoding="utf-8") == wanted:
            return 0
        sys.stderr.write(f"{path} is out of date: run `python -m shoal.resource.crd`\n")
        return 1
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    with new.open("w", encoding="utf-8") as file:
        file.write(wanted)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
