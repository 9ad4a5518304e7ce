"""Expansion of a decode step in Triton against the reference."""

from __future__ import annotations

import torch

from xllm.hardware.kernels import reference
from xllm.hardware.kernels.triton.decode_step import expand_decode


def test_expansion_equals_reference_and_marks_padding(device) -> None:
    rows = torch.tensor([3, 0, 2, 1], dtype=torch.int32, device=device)
    seq_lens = torch.tensor([1, 33, 16, 0], dtype=torch.int32, device=device)
    token_table = torch.arange(4 * 40, dtype=torch.int32, device=device).view(4, 40)
    block_table = torch.arange(4 * 3, dtype=torch.int32, device=device).view(4, 3) * 7 + 1
    new_blocks = torch.tensor([-1, 55, 0, 9], dtype=torch.int32, device=device)
    results = []
    for implementation in (expand_decode, reference.expand_decode):
        input_ids = torch.full((4,), 99, dtype=torch.int32, device=device)
        longs = [torch.full((4,), 99, dtype=torch.int64, device=device) for _ in range(3)]
        blocks = torch.zeros(4, 3, dtype=torch.int32, device=device)
        table = block_table.clone()
        implementation(
            rows, seq_lens, token_table, table, 16, new_blocks, input_ids, *longs, blocks
        )
        for entry, used in enumerate([1, 3, 1, 0]):
            blocks[entry, used:] = 0
        results.append([input_ids, *longs, blocks, table])
    for actual, expected in zip(*results, strict=True):
        assert actual.tolist() == expected.tolist()
    input_ids, positions, write_index, slots, blocks, table = results[0]
    assert input_ids.tolist() == [120, 32, 95, 0]
    assert positions.tolist() == [0, 32, 15, 0]
    assert write_index.tolist() == [121, 33, 96, -1]
    assert slots.tolist() == [64 * 16, 55 * 16, 15, -1]
    assert blocks[1].tolist() == [1, 8, 55] and blocks[2, 0] == 0
    assert table[0].tolist() == [1, 8, 55] and table[2].tolist() == [0, 50, 57]
