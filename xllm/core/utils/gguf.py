"""The GGUF container: metadata and tensor table, without torch and without the ``gguf`` package.

The tokenizer (server process) and the weights (engine process) read the same file; parsing the
hundred thousand strings of a vocabulary has to cost tenths of a second. Every length is checked
against the file before it is used. Format: the GGUF specification, versions 2 and 3.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import struct
from typing import Any

import numpy as np

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_MAX_DIMS = 4
_MAX_NESTING = 4


@dataclasses.dataclass(frozen=True, slots=True)
class GgufTensor:
    """One entry of the tensor table.

    ``shape`` is in row-major order (the file stores it reversed); ``offset`` counts bytes from the
    start of the file; ``type_id`` is the ``GGMLQuantizationType`` number.
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


@dataclasses.dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata and tensor table of a GGUF file.

    Metadata values are str, int, float, bool, a list of str, or a NumPy array of numbers.
    """

    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]
    file_size: int


def read_header(path: str | os.PathLike[str]) -> GgufHeader:
    """Read the header of a GGUF file.

    Raises:
        ValueError: not a GGUF file, an unsupported version, or lengths beyond the file's end.
        OSError: the file cannot be read.
    """
    size = os.path.getsize(path)
    if size < 24:
        raise ValueError(f"{path} is not a GGUF file: {size} bytes")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _Parser(data, size).header()
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


class _Parser:
    def __init__(self, data: mmap.mmap, size: int) -> None:
        self._data = data
        self._size = size
        self._position = 0

    def header(self) -> GgufHeader:
        if self._take(4) != _MAGIC:
            raise ValueError("not a GGUF file (wrong magic)")
        version = self._scalar("<I")
        if version not in (2, 3):
            raise ValueError(f"GGUF version {version} is not supported (2 and 3 are)")
        num_tensors, num_pairs = self._scalar("<Q"), self._scalar("<Q")
        metadata: dict[str, Any] = {}
        for _ in range(self._bounded(num_pairs, 13)):
            key = self._string()
            metadata[key] = self._value(self._scalar("<I"))
        entries = [self._tensor() for _ in range(self._bounded(num_tensors, 24))]
        alignment = int(metadata.get("general.alignment", 32))
        if alignment <= 0 or alignment % 8:
            raise ValueError(f"general.alignment must be a multiple of 8, got {alignment}")
        start = -(-self._position // alignment) * alignment
        tensors = {}
        for entry in entries:
            if start + entry.offset > self._size or entry.offset % alignment:
                raise ValueError(f"tensor {entry.name} starts beyond the file's end or unaligned")
            tensors[entry.name] = dataclasses.replace(entry, offset=start + entry.offset)
        return GgufHeader(metadata, tensors, self._size)

    def _tensor(self) -> GgufTensor:
        name = self._string()
        num_dims = self._scalar("<I")
        if num_dims > _MAX_DIMS:
            raise ValueError(f"tensor {name} has {num_dims} dimensions, at most {_MAX_DIMS} exist")
        reversed_shape = tuple(self._scalar("<Q") for _ in range(num_dims))
        type_id = self._scalar("<I")
        return GgufTensor(name, reversed_shape[::-1], type_id, self._scalar("<Q"))

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(depth=1)
        return self._numbers(kind, 1)[0].item()

    def _array(self, depth: int) -> Any:
        if depth > _MAX_NESTING:
            raise ValueError("metadata arrays are nested too deeply")
        kind, length = self._scalar("<I"), self._scalar("<Q")
        if kind == _STRING:
            return self._strings(self._bounded(length, 8))
        if kind == _ARRAY:
            return [self._array(depth + 1) for _ in range(self._bounded(length, 12))]
        return self._numbers(kind, length)

    def _numbers(self, kind: int, length: int) -> np.ndarray[Any, Any]:
        dtype = _SCALARS.get(kind)
        if dtype is None:
            raise ValueError(f"metadata value type {kind} is unknown")
        return np.frombuffer(self._take(length * dtype.itemsize), dtype=dtype)

    def _strings(self, count: int) -> list[str]:
        # The vocabulary's hot loop: local names, one bounds check per string.
        data, size, position = self._data, self._size, self._position
        unpack = struct.Struct("<Q").unpack_from
        result = []
        for _ in range(count):
            if position + 8 > size:
                raise ValueError("a string array reaches beyond the end of the file")
            start = position + 8
            position = start + unpack(data, position)[0]
            if position > size:
                raise ValueError("a string reaches beyond the end of the file")
            result.append(data[start:position].decode("utf-8", "replace"))
        self._position = position
        return result

    def _string(self) -> str:
        return self._take(self._scalar("<Q")).decode("utf-8", "replace")

    def _scalar(self, code: str) -> int:
        value: int = struct.unpack(code, self._take(struct.calcsize(code)))[0]
        return value

    def _bounded(self, count: int, min_bytes: int) -> int:
        """``count`` if that many entries of at least ``min_bytes`` still fit into the file."""
        if count * min_bytes > self._size - self._position:
            raise ValueError(f"{count} entries do not fit into the file")
        return count

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if end > self._size:
            raise ValueError("the header reaches beyond the end of the file")
        taken = self._data[self._position : end]
        self._position = end
        return taken
