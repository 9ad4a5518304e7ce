"""Expansion of a decode step: from row numbers and lengths to what the model reads.

Grid: (row of the batch,). Also gathers the row's block table, of which only as many entries are
written as the row has blocks. A block appended now is in the plan, and goes into the table too.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from xllm.hardware.kernels.triton.launch import allow_consumers, pdl_options, wait_for_producers

_BLOCKS_PER_LOAD = 256


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
    _expand_decode_kernel[(rows.shape[0],)](
        rows,
        seq_lens,
        token_table,
        block_table,
        new_blocks,
        input_ids,
        positions,
        write_index,
        slot_mapping,
        batch_blocks,
        token_table.stride(0),
        block_table.stride(0),
        batch_blocks.stride(0),
        BLOCK_SIZE=block_size,
        BLOCK=_BLOCKS_PER_LOAD,
        num_warps=2,
        **pdl_options(rows.device),
    )


@triton.jit
def _expand_decode_kernel(
    rows_ptr,  # (S,) int32
    seq_lens_ptr,  # (S,) int32
    token_table_ptr,  # (R, W) int32
    block_table_ptr,  # (R, B) int32
    new_blocks_ptr,  # (S,) int32, -1: none
    input_ids_ptr,  # (S,) int32
    positions_ptr,  # (S,) int64
    write_index_ptr,  # (S,) int64
    slots_ptr,  # (S,) int64
    batch_blocks_ptr,  # (S, B) int32
    token_stride,
    block_stride,
    batch_stride,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    entry = tl.program_id(0)
    wait_for_producers(PDL)
    allow_consumers(PDL)
    row = tl.load(rows_ptr + entry).to(tl.int64)
    seq_len = tl.load(seq_lens_ptr + entry)
    if seq_len == 0:  # padding
        tl.store(input_ids_ptr + entry, 0)
        tl.store(positions_ptr + entry, 0)
        tl.store(write_index_ptr + entry, -1)
        tl.store(slots_ptr + entry, -1)
        return
    position = (seq_len - 1).to(tl.int64)
    index = row * token_stride + position
    tl.store(input_ids_ptr + entry, tl.load(token_table_ptr + index))
    tl.store(positions_ptr + entry, position)
    tl.store(write_index_ptr + entry, index + 1)
    source = block_table_ptr + row * block_stride
    last = (seq_len - 1) // BLOCK_SIZE
    newest = tl.load(new_blocks_ptr + entry)
    if newest >= 0:
        tl.store(source + last, newest)
    else:
        newest = tl.load(source + last)
    tl.store(slots_ptr + entry, newest.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE)
    lane = tl.arange(0, BLOCK)
    for start in range(0, last + 1, BLOCK):
        blocks = start + lane
        # Not the last: what this program has just stored may not be visible to all its threads.
        values = tl.load(source + blocks, mask=blocks < last, other=0)
        values = tl.where(blocks == last, newest, values)
        to = batch_blocks_ptr + entry.to(tl.int64) * batch_stride + blocks
        tl.store(to, values, mask=blocks <= last)
