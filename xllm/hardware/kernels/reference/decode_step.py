"""Expansion of a decode step, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


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
    live = seq_lens > 0
    row = rows.long()
    position = (seq_lens.long() - 1).clamp(min=0)
    index = row * token_table.shape[1] + position
    last = position // block_size
    block = torch.where(new_blocks >= 0, new_blocks, block_table[row, last])
    block_table[row[live], last[live]] = block[live]
    input_ids.copy_(torch.where(live, token_table.view(-1)[index], 0))
    positions.copy_(position)
    write_index.copy_(torch.where(live, index + 1, -1))
    slot_mapping.copy_(torch.where(live, block.long() * block_size + position % block_size, -1))
    batch_blocks.copy_(block_table[row])
