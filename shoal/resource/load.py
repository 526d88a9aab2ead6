"""From a file, a text or an object of the API server to a ShardedModel.

A plain path as a source's uri is a convenience of one machine: here it becomes a file:// uri, relative to the
manifest, so that the type and the CRD know only uris.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.errors import ManifestError
from shoal.resource.sharded_model import ShardedModel
from shoal.resource.yaml_source import Document, read_document, validated


def load_sharded_model(path: Path) -> ShardedModel:
    """Read a ShardedModel from a YAML file; raises ManifestError with file, line and field."""
    return parse_sharded_model(read_text(path), origin=str(path), base=path.parent)


def parse_sharded_model(text: str, *, origin: str = "manifest", base: Path | None = None) -> ShardedModel:
    """Read a ShardedModel from YAML text; plain paths in it are relative to `base` (default: where we are)."""
    document = read_document(text, origin)
    return validated(ShardedModel, _with_file_uris(document, base or Path()))


def sharded_model_from_object(body: Mapping[str, Any]) -> ShardedModel:
    """Read a ShardedModel from an object that the API server holds; raises ManifestError naming the field."""
    name = body.get("metadata", {}).get("name", "?") if isinstance(body.get("metadata"), Mapping) else "?"
    return validated(ShardedModel, Document(data=dict(body), origin=f"ShardedModel {name}"))


def read_text(path: Path) -> str:
    """The text of a YAML file; raises ManifestError when there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ManifestError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise ManifestError(f"{path}: not UTF-8 text; is it a manifest?") from None
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror}") from error


def _with_file_uris(document: Document, base: Path) -> Document:
    """Replace plain paths in the two places that hold a source; anything malformed is left to validation."""
    data = document.data
    for path in (("spec", "model", "source"), ("spec", "scheduler", "speculative", "draft", "source")):
        source = _mapping_at(data, path)
        uri = source.get("uri") if source is not None else None
        if source is not None and isinstance(uri, str) and uri and "://" not in uri:
            source["uri"] = (base.absolute() / Path(uri).expanduser()).resolve().as_uri()
    return document


def _mapping_at(data: Any, path: tuple[str, ...]) -> dict[str, Any] | None:
    for part in path:
        if not isinstance(data, dict):
            return None
        data = data.get(part)
    return data if isinstance(data, dict) else None
