"""Safetensors checkpoints, single or sharded. The library maps files and checks every bound."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from safetensors import SafetensorError, safe_open
from torch import Tensor

_FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}


class SafetensorsCheckpoint:
    """Implements ``Checkpoint``. Where shards repeat a name, the first one counts.

    Raises:
        ValueError: a file is damaged or truncated, or a tensor that is read is not float.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._bytes: dict[str, int] = {}
        self._path_of: dict[str, str] = {}
        self._not_float: dict[str, str] = {}  # types of tensors that no model takes as they are
        for path in paths:
            self._read_header(path)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes

    def num_bytes(self, name: str) -> int:
        return self._bytes[name]

    def tensors(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        by_path: dict[str, list[str]] = {}
        for name in names:
            self._check_float(name)
            by_path.setdefault(self._path_of[name], []).append(name)
        for path, wanted in by_path.items():
            with safe_open(path, framework="pt") as file:
                for name in wanted:
                    yield name, file.get_tensor(name)

    def _check_float(self, name: str) -> None:
        if (dtype := self._not_float.get(name)) is not None:
            raise ValueError(
                f"tensor {name} is stored as {dtype}, not as floats, and config.json names no "
                "quantization_config that says what it stands for"
            )

    def _read_header(self, path: str) -> None:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a dict)
                    if name in self._path_of:
                        continue
                    entry = file.get_slice(name)
                    self._path_of[name] = path
                    self._shapes[name] = tuple(entry.get_shape())
                    dtype = entry.get_dtype()
                    if dtype not in _FLOAT_BYTES:
                        self._not_float[name] = dtype
                    self._bytes[name] = math.prod(self._shapes[name]) * _FLOAT_BYTES.get(dtype, 1)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"cannot read {path}: {error}") from None
