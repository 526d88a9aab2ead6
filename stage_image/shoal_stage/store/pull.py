"""Pull: the files of a model that one stage needs, into the node's cache.

    <into>/<digest>/manifest.json
    <into>/<digest>/blocks/…  tokenizer/…      only what is asked for

What is there with its size and digest is not fetched again; what was interrupted goes on at its last byte. Files
appear whole: they are written as `.partial`, compared with the digest, made durable and renamed. Several pulls into
one cache (two stages on one node) take turns.
"""

from __future__ import annotations

import errno
import fcntl
import http.client
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pydantic import ValidationError

from shoal.errors import IntegrityError, ManifestError, ResourceError, UsageError
from shoal.manifest import MANIFEST_FILE, FileEntry, Manifest, file_sha256

CHUNK: Final = 1 << 20
SILENCE_SECONDS: Final = 30.0
GIVE_UP_SECONDS: Final = 600.0
"""How long a store may give nothing at all before the pull fails; the kubelet then starts it again."""
RETRY_SECONDS: Final = (0.2, 1.0, 3.0, 10.0)


@dataclass(frozen=True, slots=True)
class Pulled:
    """Where the model directory is, and how many bytes came over the network."""

    directory: Path
    fetched: int
    present: int


class Pull:
    """One model from one store."""

    def __init__(self, store: str, digest: str, into: Path, give_up_seconds: float = GIVE_UP_SECONDS) -> None:
        parts = urlsplit(store)
        if parts.scheme != "http" or not parts.hostname:
            raise UsageError(f"argument --from: {store!r} is not http://HOST:PORT")
        self._host, self._port = parts.hostname, parts.port or 80
        self._digest = digest
        self._directory = into / digest
        self._give_up = give_up_seconds
        self._fetched = 0
        self._present = 0

    def run(self, blocks: tuple[int, int] | None) -> Pulled:
        """Fetch what is missing of blocks [start, end), and the tokenizer.

        Raises ResourceError when the store cannot be reached for too long or the disk is full, IntegrityError when
        what comes is not what the digest says.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with _alone(self._directory):
                manifest = self._manifest()
                self._check(blocks, manifest)
                files = [*manifest.tokenizer, *(manifest.files_of(*blocks) if blocks else ())]
                self._make_room(files)
                for file in files:
                    self._file(file)
        except OSError as error:
            raise ResourceError(f"{self._directory} cannot be written: {error.strerror or error}") from error
        return Pulled(self._directory, self._fetched, self._present)

    def _manifest(self) -> Manifest:
        path = self._directory / MANIFEST_FILE
        for attempt in ("cached", "fetched"):
            if path.exists():
                try:
                    manifest = Manifest.model_validate_json(path.read_bytes())
                    if manifest.digest == self._digest:
                        return manifest
                except ValidationError as error:
                    if attempt == "fetched":
                        raise ManifestError(
                            f"the store's manifest cannot be used: {error.errors()[0]['msg']}"
                        ) from error
                path.unlink()
            if attempt == "cached":
                partial = path.with_name(path.name + ".partial")
                partial.unlink(missing_ok=True)
                self._download(MANIFEST_FILE, partial, None)
                _settle(partial, path)
        raise IntegrityError(f"the store's manifest has another digest than {self._digest[:12]}…")

    def _check(self, blocks: tuple[int, int] | None, manifest: Manifest) -> None:
        if blocks is not None and blocks[1] > len(manifest.blocks):
            raise UsageError(
                f"argument --blocks: {blocks[0]}:{blocks[1]}, but the model has {len(manifest.blocks)} blocks"
            )

    def _make_room(self, files: list[FileEntry]) -> None:
        missing = sum(file.bytes for file in files if not self._is_there(file))
        free = shutil.disk_usage(self._directory).free
        if missing > free:
            raise ResourceError(
                f"{self._directory} has {free >> 20} MiB free, {missing >> 20} MiB are missing: make room on this node"
            )

    def _is_there(self, file: FileEntry) -> bool:
        path = self._directory / file.path
        return path.is_file() and path.stat().st_size == file.bytes

    def _file(self, file: FileEntry) -> None:
        path = self._directory / file.path
        if self._is_there(file) and file_sha256(path) == file.sha256:
            self._present += file.bytes
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        for last in (False, True):
            self._download(file.path, partial, file.bytes)
            found = file_sha256(partial)
            if found == file.sha256:
                _settle(partial, path)
                return
            # What was left of an earlier attempt may have been damaged: once more from the beginning.
            partial.unlink()
            if last:
                raise IntegrityError(
                    f"{file.path} came with digest {found[:12]}…, the manifest says {file.sha256[:12]}…: "
                    "is the store's disk damaged?"
                )

    def _download(self, path: str, partial: Path, size: int | None) -> None:
        """Append to `partial` until it is whole. Gives up only when nothing at all came for too long."""
        heard = time.monotonic()
        attempt = 0
        while True:
            have = partial.stat().st_size if partial.exists() else 0
            if size is not None and have >= size:
                if have > size:
                    partial.unlink()
                    continue
                return
            try:
                got = self._request(path, partial, have)
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, OSError) and error.errno in _DISK:
                    raise
                now_have = partial.stat().st_size if partial.exists() else 0
                if now_have > have:
                    heard, attempt = time.monotonic(), 0
                if time.monotonic() - heard > self._give_up:
                    raise ResourceError(f"the store {self._host}:{self._port} gives no {path}: {error}") from error
                time.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
                attempt += 1
                continue
            if size is None or have + got >= size:
                return

    def _request(self, path: str, partial: Path, have: int) -> int:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=SILENCE_SECONDS)
        try:
            headers = {"Range": f"bytes={have}-"} if have else {}
            connection.request("GET", f"/{self._digest}/{path}", headers=headers)
            response = connection.getresponse()
            if response.status not in (200, 206):
                raise http.client.HTTPException(
                    f"HTTP {response.status}: {response.read(200).decode(errors='replace')}"
                )
            got = 0
            with partial.open("ab" if response.status == 206 else "wb") as stream:
                while chunk := response.read(CHUNK):
                    stream.write(chunk)
                    got += len(chunk)
                    self._fetched += len(chunk)
            return got if response.status == 206 else got - have
        finally:
            connection.close()


_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""No space, quota, read-only: the disk's fault, not the network's."""


def _settle(partial: Path, path: Path) -> None:
    """Durable, then in its place."""
    with partial.open("rb") as stream:
        os.fsync(stream.fileno())
    partial.replace(path)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """One pull at a time; the lock ends with its process."""
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
