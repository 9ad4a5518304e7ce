"""Reads a LoRA adapter as PEFT writes it: its config and its safetensors file."""

from __future__ import annotations

import json
import math
import re
import stat
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from xllm.core.config.lora import ADAPTER_FILES
from xllm.modeling.layers.lora import LowRank
from xllm.modeling.weights.loader import renamed

_CONFIG_FILE, _WEIGHTS_FILE = ADAPTER_FILES
_NAME = re.compile(r"(?:base_model\.model\.)?(?P<path>.+)\.lora_(?P<half>[AB])(?:\.\w+)?\.weight")
_MAX_CONFIG_BYTES = 1 << 20
_MAX_ALPHA = 1 << 20
# Fields that give the same tensors another meaning.
_CHANGING = ("alpha_pattern", "alora_invocation_tokens", "use_qalora", "layer_replication")
# Starts of training that took a part out of the model's weights, which the adapter puts back.
_CHANGE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


def read_adapter(folder: str, renames: dict[str, str] | None = None) -> dict[str, LowRank]:
    """Low-rank weights by module path (``model.layers.0.self_attn.q_proj``), scale applied.

    Args:
        renames: of the family, for modules that checkpoints call otherwise.

    Raises:
        ValueError: the folder is no adapter, or one that changes more than linear layers.
    """
    config = _read_config(Path(folder))
    halves: dict[str, dict[str, torch.Tensor]] = {}
    path = Path(folder) / _WEIGHTS_FILE
    try:
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                match = _NAME.fullmatch(name)
                if match is None:
                    raise ValueError(f"{path}: {name} is no low-rank weight of a linear layer")
                module = renamed(match["path"], renames or {})
                halves.setdefault(module, {})[match["half"]] = tensors.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not halves:
        raise ValueError(f"{path} has no weights")
    found = {}
    for module, half in halves.items():
        if set(half) != {"A", "B"}:
            raise ValueError(f"{path}: {module} lacks lora_A or lora_B")
        a, b = half["A"].float(), half["B"].float()
        if a.dim() != 2 or b.dim() != 2:
            raise ValueError(f"{path}: weights of {module} must have two dimensions")
        if not a.shape[0]:
            raise ValueError(f"{path}: weights of {module} have rank 0")
        b = b * _scale(config, a.shape[0])
        # Of those, every answer would be an error.
        if not (a.isfinite().all() and b.isfinite().all()):
            raise ValueError(f"{path}: weights of {module} are not finite")
        found[module] = LowRank(a, b)
    return found


def _scale(config: dict[str, Any], rank: int) -> float:
    """Factor of B: alpha / r, or alpha / sqrt(r) (rsLoRA, arXiv:2312.03732). ``rank`` is the
    module's own, which ``rank_pattern`` may have set."""
    alpha = config.get("lora_alpha", rank)
    return alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / _CONFIG_FILE
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe might never end
            raise ValueError(f"{path} is no file")
        if status.st_size > _MAX_CONFIG_BYTES:
            raise ValueError(f"{path} is larger than {_MAX_CONFIG_BYTES} bytes")
        config = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not isinstance(config, dict) or config.get("peft_type", "LORA") != "LORA":
        raise ValueError(f"{path} describes no LoRA adapter")
    for field, plain in (("bias", "none"), ("use_dora", False), ("modules_to_save", None)):
        if config.get(field, plain) not in (plain, []):
            raise ValueError(f"{path}: {field} is not supported, it is {config[field]!r}")
    for field in _CHANGING:
        if config.get(field):
            raise ValueError(f"{path}: {field} is not supported")
    start = config.get("init_lora_weights", True)
    if isinstance(start, str) and start.startswith(_CHANGE_BASE):
        raise ValueError(
            f"{path}: init_lora_weights {start!r} changes the model's own weights; convert the "
            "adapter to a plain one"
        )
    alpha = config.get("lora_alpha", 1)
    number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
    if not number or not abs(alpha) <= _MAX_ALPHA:  # NaN is not either
        raise ValueError(f"{path}: lora_alpha must be a number up to {_MAX_ALPHA}, got {alpha!r}")
    return config
