"""Expansion of a decode step on the CPU."""

from __future__ import annotations

import struct

from torch import Tensor

from xllm.hardware.kernels.cpu.call import entry

_expand_decode = entry("xllm_expand_decode")
# ten pointers; rows, widths of the token and block tables and of the batch's, block size
_pack = struct.Struct("=15q").pack


def expand_decode(
    rows: Tensor,
    seq_lens: Tensor,
    token_table: Tensor,
    block_table: Tensor,
    block_size: int,
    new_blocks: Tensor,
    input_ids: Tensor,
    positions: Tensor,
    write_index: Tensor,
    slot_mapping: Tensor,
    batch_blocks: Tensor,
) -> None:
    """See ``ops.expand_decode``."""
    _expand_decode(
        _pack(
            *(rows.data_ptr(), seq_lens.data_ptr(), token_table.data_ptr()),
            *(block_table.data_ptr(), new_blocks.data_ptr(), input_ids.data_ptr()),
            *(positions.data_ptr(), write_index.data_ptr(), slot_mapping.data_ptr()),
            *(batch_blocks.data_ptr(),),
            *(rows.shape[0], token_table.stride(0), block_table.stride(0)),
            *(batch_blocks.stride(0), block_size),
        )
    )
