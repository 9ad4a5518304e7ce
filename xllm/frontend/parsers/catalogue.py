"""The formats by name, and which of them a model uses."""

from __future__ import annotations

from typing import cast

from xllm.core.utils.registry import Registry
from xllm.frontend.parsers.format import ReasoningFormat, ToolFormat
from xllm.frontend.parsers.harmony import Harmony

TOOL_FORMATS = Registry("xllm.frontend.parsers.tools", "--tool-call-parser")
REASONING_FORMATS = Registry("xllm.frontend.parsers.reasoning", "--reasoning-parser")

# Names that people bring along from other engines.
_TOOL_ALIASES = {
    **dict.fromkeys(("qwen", "qwen25", "qwen3", "qwen2_5"), "hermes"),
    **dict.fromkeys(("qwen3_xml", "qwen3coder"), "qwen3_coder"),
    **dict.fromkeys(("llama3", "llama4_json"), "llama3_json"),
    **dict.fromkeys(("deepseekv3", "deepseek"), "deepseek_v3"),
    **dict.fromkeys(("deepseekv31",), "deepseek_v31"),
    **dict.fromkeys(("deepseekv32",), "deepseek_v32"),
    **dict.fromkeys(("glm", "glm4_moe"), "glm45"),
    **dict.fromkeys(("glm47_moe",), "glm47"),
    **dict.fromkeys(("openai", "gpt-oss", "harmony"), "gpt_oss"),
    **dict.fromkeys(("granite4",), "granite"),
    **dict.fromkeys(("phi4_mini_json", "phi4_mini"), "phi4"),
    **dict.fromkeys(("minimax-m2",), "minimax_m2"),
    **dict.fromkeys(("olmo3",), "pythonic"),
}
_REASONING_ALIASES = {
    **dict.fromkeys(("deepseek-r1",), "deepseek_r1"),
    **dict.fromkeys(("deepseek-v3", "deepseek_v31", "deepseek_v32"), "deepseek_v3"),
    **dict.fromkeys(("qwen3-thinking",), "qwen3"),
    **dict.fromkeys(("glm47", "glm"), "glm45"),
    **dict.fromkeys(("openai_gptoss", "gpt-oss", "openai"), "gpt_oss"),
    **dict.fromkeys(("minimax_m2_append_think", "minimax"), "minimax_m2"),
    **dict.fromkeys(("magistral",), "mistral"),
    **dict.fromkeys(("kimi",), "kimi_k2"),
}


def tool_format(asked: str, model_type: str, template: str) -> ToolFormat | Harmony | None:
    """The format of that name; for ``auto`` the model's own, if one is known.

    Args:
        asked: a name, an alias, ``auto`` or ``none``.
        model_type: as in the model's config.
        template: source of its chat template.

    Raises:
        ValueError: no such format; the message lists those that exist.
    """
    found = _format(TOOL_FORMATS, _TOOL_ALIASES, asked, model_type, template)
    return cast("ToolFormat | Harmony | None", found)


def reasoning_format(
    asked: str, model_type: str, template: str
) -> ReasoningFormat | Harmony | None:
    """Likewise for reasoning. A model whose template knows no thoughts has none.

    Raises:
        ValueError: no such format; the message lists those that exist.
    """
    found = _format(REASONING_FORMATS, _REASONING_ALIASES, asked, model_type, template)
    return cast("ReasoningFormat | Harmony | None", found)


def _format(
    registry: Registry, aliases: dict[str, str], asked: str, model_type: str, template: str
) -> object:
    if asked == "none":
        return None
    if asked != "auto":
        return registry.load(aliases.get(asked, asked)).FORMAT
    formats = [registry.load(name).FORMAT for name in registry.names()]
    # The format that recognizes the most of the template wins, and the model's type decides a draw.
    # It counts alone only where there is no template to read.
    scores = [
        (_recognized(form.template, template), model_type in form.model_types) for form in formats
    ]
    best = max(range(len(formats)), key=scores.__getitem__)
    marked, typed = scores[best]
    return formats[best] if marked or (typed and not template) else None


def _recognized(options: tuple[tuple[str, ...], ...], template: str) -> int:
    """Characters of the longest set of texts that the template has all of."""
    found = [sum(map(len, texts)) for texts in options if all(text in template for text in texts)]
    return max(found, default=0)
