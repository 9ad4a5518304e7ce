"""``bad_words``: token sequences that must not be generated.

The last token of a sequence is banned when the generated tokens end with the tokens before it. Only
generated tokens count, as in vLLM: a prompt may end with "New" and go on with "York".
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from xllm.core.utils.arrays import BoolArray, Int64Array
from xllm.execution.sampling.step import RowRequest, SamplingStep, as_index
from xllm.execution.transfer import to_device

_ANY = -1  # padding of a prefix: matches every token


@dataclasses.dataclass(frozen=True, slots=True)
class _Words:
    """Every word of the staged rows; prefixes are aligned to the right, W the longest."""

    entries: Int64Array  # (E,) which of the step's rows
    entries_index: torch.Tensor  # the same on the device
    rows: torch.Tensor  # (E, 1) int64
    prefixes: torch.Tensor  # (E, W) int32
    prefix_lens: Int64Array  # (E,)
    last_tokens: torch.Tensor  # (E,) int64


class Processor:
    """Compares the ends of rows with prefixes on the device, where the newest tokens are."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._row_words: dict[int, list[tuple[int, ...]]] = {}
        self._used: BoolArray = np.zeros(max_rows, np.bool_)
        self._version = 0
        self._words: tuple[int, bytes, _Words | None] = (-1, b"", None)
        self._step: SamplingStep | None = None

    @property
    def num_rows(self) -> int:
        """Rows that use the rule."""
        return len(self._row_words)

    def add_request(self, request: RowRequest) -> None:
        """Take over a row's words, if it has any.

        Raises:
            ValueError: a token id lies outside the vocabulary.
        """
        words = [word for word in request.sampling.bad_words_token_ids if word]
        if not words:
            return
        if not all(0 <= token < self._vocab_size for word in words for token in word):
            raise ValueError(f"bad_words must have token ids below {self._vocab_size}")
        self._row_words[request.row] = words
        self._used[request.row] = True
        self._version += 1

    def remove(self, row: int) -> None:
        """Forget a row."""
        if self._row_words.pop(row, None) is not None:
            self._used[row] = False
            self._version += 1

    def stage(self, step: SamplingStep) -> bool:
        """Collect the words of the step's rows."""
        self._step = step
        key = step.rows.tobytes()
        if self._words[:2] != (self._version, key):
            self._words = (self._version, key, self._collect(step.rows))
        return self._words[2] is not None

    def apply(self, logits: torch.Tensor) -> None:
        """Set the last token of every word whose prefix was just generated to -inf."""
        words, step = self._words[2], self._step
        assert words is not None and step is not None
        width = words.prefixes.shape[1]
        # Columns left of a row's start belong to padded prefixes: any valid column will do there.
        first = step.positions[words.entries] - width
        columns = np.maximum(first[:, None] + np.arange(width), 0)
        tail = step.token_table[words.rows, as_index(columns, self._device)]
        matches = ((tail == words.prefixes) | (words.prefixes == _ANY)).all(dim=1)
        generated = words.prefix_lens <= step.output_lens[words.entries]
        matches &= to_device(generated, self._device)
        # Added, not assigned: two words of a row may end with the same token.
        ban = torch.zeros(len(matches), device=self._device).masked_fill_(matches, -torch.inf)
        logits.index_put_((words.entries_index, words.last_tokens), ban, accumulate=True)

    def accept(self, step: SamplingStep, tokens: torch.Tensor) -> None:
        """Sampled tokens are read from the rows themselves."""

    def _collect(self, rows: Int64Array) -> _Words | None:
        found = [
            (entry, row, word)
            for entry, row in enumerate(rows.tolist())
            if self._used[row]
            for word in self._row_words[row]
        ]
        if not found:
            return None
        width = max(len(word) - 1 for _, _, word in found)
        prefixes = np.full((len(found), width), _ANY, np.int32)
        for i, (_, _, word) in enumerate(found):
            prefixes[i, width - len(word) + 1 :] = word[:-1]
        entries = np.array([entry for entry, _, _ in found], np.int64)
        return _Words(
            entries=entries,
            entries_index=as_index(entries, self._device),
            rows=as_index(np.array([row for _, row, _ in found]), self._device).unsqueeze(1),
            prefixes=to_device(prefixes, self._device),
            prefix_lens=np.array([len(word) - 1 for _, _, word in found], np.int64),
            last_tokens=as_index(np.array([word[-1] for _, _, word in found]), self._device),
        )
