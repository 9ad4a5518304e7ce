"""GGUF checkpoints: names, row orders and offsets translated to the Hugging Face form."""

from __future__ import annotations

import dataclasses
import math
import mmap
import re
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor

from xllm.core.utils.gguf import GgufTensor, read_header
from xllm.modeling.weights.dequantize import BlockFormat, block_format

_CHUNK_VALUES = 1 << 18  # expanded at a time, so that intermediates stay in the cache

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
# One tensor (E, N, K) for all experts of a block.
_STACKED_NAMES = {
    "ffn_gate_exps": "gate_proj",
    "ffn_up_exps": "up_proj",
    "ffn_down_exps": "down_proj",
}
# Gemma 3 has four norms per block, and llama.cpp stores 1 + w for each norm weight w.
_GEMMA3_NAMES = _NAMES | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_METADATA_TENSORS = frozenset(("rope_freqs.weight",))  # read with the metadata
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")


class GgufCheckpoint:
    """Implements ``Checkpoint``.

    Raises:
        ValueError: the file is damaged, or holds a type that cannot be dequantized.
    """

    def __init__(self, path: str) -> None:
        header = read_header(path)
        self._path = path
        self._file_size = header.file_size
        architecture = str(header.metadata["general.architecture"])
        names = _GEMMA3_NAMES if architecture == "gemma3" else _NAMES
        self._entries = {
            name: tensor
            for stored in header.tensors.values()
            if stored.name not in _METADATA_TENSORS
            for name, tensor in _unstacked(stored, names)
        }
        self._formats = {name: self._format(tensor) for name, tensor in self._entries.items()}
        self._heads: dict[str, int] = {}
        if architecture == "llama":  # llama.cpp interleaves the rotated halves of this family only
            num_heads = int(header.metadata["llama.attention.head_count"])
            num_kv_heads = int(header.metadata.get("llama.attention.head_count_kv", num_heads))
            self._heads = {"q_proj": num_heads, "k_proj": num_kv_heads}
        self._norm_offset = 1.0 if architecture == "gemma3" else 0.0

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._entries.items()}

    def num_bytes(self, name: str) -> int:
        fmt = self._formats[name]
        return math.prod(self._entries[name].shape) // fmt.num_values * fmt.num_bytes

    def tensors(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        ordered = sorted(names, key=lambda name: self._entries[name].offset)
        with open(self._path, "rb") as file:
            # Copy-on-write, never written: torch takes no read-only buffer. Tensors hold the map.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        data = torch.frombuffer(mapped, dtype=torch.uint8)
        # Whole tensors side by side, each on one thread: the ops are too small to share out.
        num_threads = torch.get_num_threads()
        with _one_thread_per_op(), ThreadPoolExecutor(num_threads) as pool:
            pending: deque[tuple[str, Future[Tensor]]] = deque()
            for name in ordered:
                pending.append((name, pool.submit(self._read, name, data)))
                if len(pending) > num_threads:
                    done, future = pending.popleft()
                    yield done, future.result()
            for done, future in pending:
                yield done, future.result()

    def _read(self, name: str, data: Tensor) -> Tensor:
        entry, fmt = self._entries[name], self._formats[name]
        raw = data[entry.offset : entry.offset + self.num_bytes(name)]
        layer = name.split(".")[-2]
        if layer in self._heads:
            raw = _deinterleave(raw.view(entry.shape[0], -1), self._heads[layer])
        tensor = _expand(raw.reshape(-1, fmt.num_bytes), fmt).view(entry.shape)
        if self._norm_offset and layer.endswith("norm"):
            tensor.sub_(self._norm_offset)
        return tensor

    def _format(self, tensor: GgufTensor) -> BlockFormat:
        fmt = block_format(tensor.type_id)
        count = math.prod(tensor.shape)
        if not tensor.shape or tensor.shape[-1] % fmt.num_values:
            raise ValueError(
                f"tensor {tensor.name}: rows of {tensor.shape[-1:]} values are not whole blocks of "
                f"{fmt.num_values}"
            )
        if tensor.offset + count // fmt.num_values * fmt.num_bytes > self._file_size:
            raise ValueError(f"tensor {tensor.name} reaches beyond the end of the file")
        return fmt


def hf_name(name: str, names: dict[str, str]) -> str:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``; unknown names stay."""
    stem, _, suffix = name.rpartition(".")
    if match := _BLOCK.fullmatch(stem):
        index, stem = match.groups()
        return f"model.layers.{index}.{names[stem]}.{suffix}" if stem in names else name
    return f"{names[stem]}.{suffix}" if stem in names else name


def _unstacked(tensor: GgufTensor, names: dict[str, str]) -> Iterator[tuple[str, GgufTensor]]:
    """The tensor under its Hugging Face name, or every expert's matrix of a stacked one."""
    match = _BLOCK.fullmatch(tensor.name.rpartition(".")[0])
    if match is None or match[2] not in _STACKED_NAMES or len(tensor.shape) != 3:
        yield hf_name(tensor.name, names), tensor
        return
    index, stem = match.groups()
    count, *shape = tensor.shape
    fmt = block_format(tensor.type_id)
    num_bytes = math.prod(shape) // fmt.num_values * fmt.num_bytes
    for expert in range(count):
        name = f"model.layers.{index}.mlp.experts.{expert}.{_STACKED_NAMES[stem]}.weight"
        offset = tensor.offset + expert * num_bytes
        yield name, dataclasses.replace(tensor, shape=tuple(shape), offset=offset)


def _deinterleave(rows: Tensor, num_heads: int) -> Tensor:
    """Rows (heads x pairs x 2) back to (heads x 2 x pairs), the order of rotate-half."""
    paired = rows.view(num_heads, -1, 2, rows.shape[1])
    return paired.transpose(1, 2).reshape(rows.shape)


def _expand(blocks: Tensor, fmt: BlockFormat) -> Tensor:
    """uint8 (N, num_bytes) -> float32 (N, num_values)."""
    out = torch.empty(blocks.shape[0], fmt.num_values, dtype=torch.float32)
    step = _CHUNK_VALUES // fmt.num_values
    for start in range(0, blocks.shape[0], step):
        out[start : start + step] = fmt.expand(blocks[start : start + step])
    return out


@contextmanager
def _one_thread_per_op() -> Iterator[None]:
    """Torch's own threading off, here and in threads started meanwhile."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
