"""Where a compile does its work: `<destination>.partial/`, which survives a crash and is renamed when complete.

A block counts as finished only when both its files are on the disk under their names and the journal says so with
their digests. A later compile with the same key (checkpoint, options, compiler) takes finished blocks over when their
bytes still have that digest; with another key it starts anew. A lock on the directory keeps two compiles apart; it
goes away with the process, however that ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import openvino as ov
from pydantic import BaseModel, ConfigDict, ValidationError

from shoal.errors import ResourceError, UsageError
from shoal.manifest import BLOCKS_DIR, Block, BlockKind, FileEntry, file_sha256

JOURNAL = "journal.json"
_UNFINISHED = "unfinished-"


class _Journal(BaseModel):
    """What has been finished, and for which inputs."""

    model_config = ConfigDict(extra="forbid")

    key: str
    blocks: dict[str, Block] = {}


class Workplace:
    """The directory of one compile, locked by this process. Use `open_workplace`."""

    def __init__(self, directory: Path, key: str) -> None:
        self.directory = directory
        self._journal = self._resume(key)

    def _resume(self, key: str) -> _Journal:
        blocks = self.directory / BLOCKS_DIR
        try:
            journal = _Journal.model_validate_json((self.directory / JOURNAL).read_bytes())
        except (FileNotFoundError, ValidationError):
            journal = None
        if journal is None or journal.key != key:
            self._check_ours()
            for child in self.directory.iterdir():
                shutil.rmtree(child) if child.is_dir() else child.unlink()
            journal = _Journal(key=key)
        blocks.mkdir(exist_ok=True)
        for left_over in blocks.glob(f"{_UNFINISHED}*"):
            left_over.unlink()
        return journal

    def _check_ours(self) -> None:
        """Nothing is removed from a directory that no compile made."""
        if (self.directory / JOURNAL).exists():
            return
        foreign = sorted({child.name for child in self.directory.iterdir()} - {BLOCKS_DIR, f".{JOURNAL}.tmp"})
        if foreign:
            raise UsageError(
                f"{self.directory} is where this compile would work, but it holds {foreign[0]}, which no compile put "
                "there: move it away or choose another output"
            )

    def finished(self, name: str) -> Block | None:
        """The block as an earlier run wrote it, None when it has to be built (again)."""
        block = self._journal.blocks.get(name)
        if block is None:
            return None
        for entry in block.files:
            path = self.directory / entry.path
            if not path.is_file() or path.stat().st_size != entry.bytes or file_sha256(path) != entry.sha256:
                return None
        return block

    def finished_bytes(self) -> int:
        """Bytes of finished blocks on the disk, by their sizes alone."""
        paths = (self.directory / entry.path for block in self._journal.blocks.values() for entry in block.files)
        return sum(path.stat().st_size for path in paths if path.is_file())

    def write_block(self, model: ov.Model, name: str, kind: BlockKind) -> Block:
        """Save a block durably and note it in the journal. Raises ResourceError when the disk is full."""
        blocks = self.directory / BLOCKS_DIR
        unfinished = blocks / f"{_UNFINISHED}{name}.xml"
        with disk_errors(self.directory):
            _save(model, unfinished)
            entries = []
            for suffix in (".xml", ".bin"):
                path = unfinished.with_suffix(suffix)
                sync_file(path)
                final = blocks / f"{name}{suffix}"
                entry = FileEntry(
                    path=f"{BLOCKS_DIR}/{final.name}", bytes=path.stat().st_size, sha256=file_sha256(path)
                )
                path.rename(final)
                entries.append(entry)
            sync_directory(blocks)
            block = Block(name=name, kind=kind, xml=entries[0], bin=entries[1], weight_bytes=entries[1].bytes)
            self._journal.blocks[name] = block
            write_durably(self.directory / JOURNAL, self._journal.model_dump_json().encode())
        return block

    def publish(self, destination: Path) -> None:
        """Give the finished directory its name: the last, atomic step."""
        with disk_errors(self.directory):
            (self.directory / JOURNAL).unlink(missing_ok=True)
            for directory in (path for path in self.directory.rglob("*") if path.is_dir()):
                sync_directory(directory)
            sync_directory(self.directory)
            self.directory.rename(destination)
            sync_directory(destination.parent)


@contextlib.contextmanager
def open_workplace(destination: Path, key: str) -> Iterator[Workplace]:
    """Lock and open the workplace of `destination`.

    Raises ResourceError when another compile holds it, UsageError when it is no workplace.
    """
    directory = destination.with_name(destination.name + ".partial")
    with disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResourceError(
                f"another compile is writing {directory}: wait for it or choose another output"
            ) from None
        held = os.fstat(handle)
        if not directory.exists() or directory.stat().st_ino != held.st_ino:
            raise ResourceError(f"another compile has just finished {destination}: run this one again") from None
        with disk_errors(directory):
            workplace = Workplace(directory, key)
        yield workplace
    finally:
        os.close(handle)


def check_space(directory: Path, needed: int) -> None:
    """Raises ResourceError unless `needed` bytes are free where `directory` is."""
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise ResourceError(
            f"the disk of {directory} has {free / 1e9:.2f} GB free, the compiled model needs {needed / 1e9:.2f} GB "
            "more: free space or choose another output"
        )


@contextlib.contextmanager
def disk_errors(directory: Path) -> Iterator[None]:
    """Turns a full or unwritable disk into a ResourceError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise ResourceError(
                f"the disk of {directory} is full; what is finished stays there: free space and run the same command "
                "again to go on"
            ) from error
        raise ResourceError(f"{error.filename or directory} cannot be written: {error.strerror or error}") from error


def _save(model: ov.Model, path: Path) -> None:
    """Save the IR and read it back: OpenVINO's writer does not say so when the disk is full."""
    try:
        ov.save_model(model, path, compress_to_fp16=False)
        ov.Core().read_model(path)  # maps the weights; a short file is an error
    except RuntimeError as error:
        _write_probe(path.with_suffix(".probe"))
        raise ResourceError(f"{path} was not written whole: {str(error).strip().splitlines()[-1]}") from error


def _write_probe(path: Path) -> None:
    """Raises OSError when the disk is full."""
    try:
        with path.open("wb") as stream:
            stream.write(b"\0" * (1 << 20))
            stream.flush()
            os.fsync(stream.fileno())
    finally:
        path.unlink(missing_ok=True)


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file's content in one step that survives a crash."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.rename(path)
    sync_directory(path.parent)


def sync_file(path: Path) -> None:
    """Wait until a file's bytes are on the disk."""
    with path.open("rb+") as stream:
        os.fsync(stream.fileno())


def sync_directory(path: Path) -> None:
    """Wait until a directory's entries are on the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
