"""The catalogue of attention backends, for those who ask for names and load no torch."""

from __future__ import annotations

from xllm.core.utils.registry import Registry

BACKENDS = Registry("xllm.modeling.attention", "attention backend", exclude=("base", "registry"))
