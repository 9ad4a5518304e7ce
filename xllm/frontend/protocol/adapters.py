"""Loading and unloading LoRA adapters; field names follow vLLM."""

from __future__ import annotations

import msgspec


class LoadAdapterRequest(msgspec.Struct, kw_only=True):
    """``lora_path`` is a folder of the server's host, as PEFT writes it."""

    lora_name: str
    lora_path: str


class UnloadAdapterRequest(msgspec.Struct, kw_only=True):
    """The adapter's name in the API."""

    lora_name: str
