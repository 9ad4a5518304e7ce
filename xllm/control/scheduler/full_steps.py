"""Beside many decoding rows, prompts come in steps of a size that the device computes well."""

from __future__ import annotations

from collections.abc import Iterable

# Steps that prompts wait for others: on an H200 some 20 to 30 ms, of which a grouped prompt gives
# back a part, as fewer steps of the streams carry prompts.
MAX_HELD_STEPS = 2


class FullSteps:
    """How many tokens each step may compute.

    A step of decoding rows alone costs little more than reading weights and caches. A prompt adds
    a cost of its own and leaves the last wave of the products' tiles half empty, unless prompts
    together fill the step. So where at least an eighth of ``full_step`` rows decode, a step with
    prompts computes a whole multiple of ``full_step`` tokens; prompts that are fewer wait, at most
    ``MAX_HELD_STEPS`` steps in a row.

    Args:
        full_step: tokens, see ``WorkerInfo``; 0 never lets a prompt wait.
        max_tokens: of a step.
    """

    def __init__(self, full_step: int, max_tokens: int) -> None:
        self._full_step = full_step if full_step <= max_tokens else 0
        self._max_tokens = max_tokens
        self._num_held = 0

    def size(self, num_decoding: int, prompts: Iterable[int]) -> int | None:
        """Tokens of the next step at most; None if it had better leave its prompts out.

        Args:
            num_decoding: rows that take a token each.
            prompts: tokens to compute of each prompt that could run, in turn. Read as far as the
                step reaches.
        """
        size = self._size(num_decoding, prompts)
        self._num_held = 0 if size is not None else self._num_held + 1
        return size

    def _size(self, num_decoding: int, prompts: Iterable[int]) -> int | None:
        full, most = self._full_step, self._max_tokens
        if not full or not full // 8 <= num_decoding < most:
            return most
        total = num_decoding
        for num_tokens in prompts:
            total += num_tokens
            if total >= most:
                break
        size = min(total, most) // full * full
        if size >= num_decoding + full // 4:  # else hardly a prompt would find place
            return size
        # Prompts that overflow a step as it is wait for nobody.
        waits = num_decoding < total < most and self._num_held < MAX_HELD_STEPS
        return None if waits else most
