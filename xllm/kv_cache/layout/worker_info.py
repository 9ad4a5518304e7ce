"""What a started worker tells the engine."""

from __future__ import annotations

import msgspec

from xllm.kv_cache.layout.spec import CacheGroup


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a loaded model on its device. Groups are sized (``num_blocks`` set)."""

    cache_groups: tuple[CacheGroup, ...]
    vocab_size: int  # real vocabulary, padding excluded
    max_model_len: int  # tokens
    max_step_tokens: int = 2048  # tokens of one step over all rows, unless the config says
    eos_token_ids: tuple[int, ...] = ()
    async_device: bool = False  # execute() returns before the device has computed
    # Tokens; steps with prompts beside many decoding rows had better be whole multiples of it. 0
    # where no size is better than another.
    full_step: int = 0
    reads_shared_prefixes: bool = False  # has use for ``StepPlan.shared_prefixes``
