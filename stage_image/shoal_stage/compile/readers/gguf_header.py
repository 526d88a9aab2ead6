"""The header of a GGUF file: metadata and where the tensors lie, with every length checked against the file.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian). A truncated or
damaged file is found here, before anything is allocated by a number that it holds.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from shoal.errors import CheckpointError

Value = int | float | bool | str | list["Value"]

_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_MAX_NESTING = 4


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies. `shape` is in row-major order: [rows, columns]."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata and tensors, by name."""

    metadata: Mapping[str, Value]
    tensors: Mapping[str, GgufTensor]


class _Cursor:
    """Reads forward over the mapped file; anything beyond its end is a truncated file."""

    def __init__(self, data: memoryview, path: Path) -> None:
        self._data = data
        self._path = path
        self.at = 0

    def damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._path} is not a sound GGUF file: {what}; fetch it again")

    def take(self, count: int) -> memoryview:
        if count > len(self._data) - self.at:
            raise self.damaged(f"its header asks for {count} bytes at {self.at}, the file has {len(self._data)}")
        self.at += count
        return self._data[self.at - count : self.at]

    def scalar(self, form: str) -> int | float | bool:
        value: int | float | bool = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return value

    def u32(self) -> int:
        return int(self.scalar("<I"))

    def u64(self) -> int:
        return int(self.scalar("<Q"))

    def string(self) -> str:
        raw = bytes(self.take(self.u64()))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            # Some vocabularies hold pieces of characters; they come back as what they are when encoded the same way.
            return raw.decode(errors="surrogateescape")

    def value(self, kind: int, depth: int = 0) -> Value:
        if (form := _SCALARS.get(kind)) is not None:
            return self.scalar(form)
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY and depth < _MAX_NESTING:
            inner, count = self.u32(), self.u64()
            if (form := _SCALARS.get(inner)) is not None:
                return [item[0] for item in struct.iter_unpack(form, self.take(count * struct.calcsize(form)))]
            if count > len(self._data):
                raise self.damaged(f"an array of {count} elements")
            return [self.value(inner, depth + 1) for _ in range(count)]
        raise self.damaged(f"a metadata value of unknown type {kind}")


def read_header(data: memoryview, path: Path) -> GgufHeader:
    """Parse and check the header of a mapped file.

    Raises CheckpointError when it is no GGUF file, is damaged, ends early or stores a tensor in an unknown type.
    """
    cursor = _Cursor(data, path)
    if bytes(data[:4]) != b"GGUF":
        raise CheckpointError(f"{path} is not a GGUF file: it does not begin with GGUF")
    cursor.take(4)
    version = cursor.u32()
    if version not in (2, 3):
        raise CheckpointError(f"{path} is GGUF version {version}; shoal reads versions 2 and 3, little-endian")
    tensor_count, value_count = cursor.u64(), cursor.u64()
    metadata = {}
    for _ in range(value_count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.u32())
    infos = [_tensor_info(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise cursor.damaged(f"an alignment of {alignment!r}")
    base = -(-cursor.at // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, shape, kind, offset in infos:
        size = _stored_bytes(name, shape, kind, path)
        if base + offset + size > len(data):
            raise CheckpointError(
                f"{path} is cut short: tensor {name} ends at byte {base + offset + size}, "
                f"the file has {len(data)}; fetch it again"
            )
        if name in tensors:
            raise cursor.damaged(f"tensor {name} is there twice")
        tensors[name] = GgufTensor(name, shape, GGMLQuantizationType(kind), base + offset, size)
    return GgufHeader(metadata, tensors)


def _tensor_info(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    dimensions = cursor.u32()
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise cursor.damaged(f"tensor {name!r} has {dimensions} dimensions")
    shape = tuple(reversed([cursor.u64() for _ in range(dimensions)]))
    if 0 in shape:
        raise cursor.damaged(f"tensor {name!r} has the empty shape {list(shape)}")
    return name, shape, cursor.u32(), cursor.u64()


def _stored_bytes(name: str, shape: tuple[int, ...], kind: int, path: Path) -> int:
    try:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except (ValueError, KeyError):
        raise CheckpointError(f"{path}: tensor {name} is stored in the unknown type {kind}") from None
    count = 1
    for extent in shape:
        count *= extent
    if shape[-1] % block:
        raise CheckpointError(f"{path}: tensor {name} has rows of {shape[-1]}, not a multiple of {block}")
    return count // int(block) * int(size)
