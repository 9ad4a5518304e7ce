"""Which model, and how its weights are read."""

from __future__ import annotations

import dataclasses

from xllm.core.config.option import check_bounds, option


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The model and its weights."""

    model: str = option(
        "smollm2",
        "Local folder, GGUF file, Hugging Face id or bundled short name of the model.",
        positional=True,
    )
    served_model_name: str | None = option(
        None, "Name that the API shows and accepts; by default the model argument."
    )
    task: str = option(
        "auto",
        "What the model is served for: embed and classify answer with vectors; auto takes what its "
        "files say.",
        choices=("auto", "generate", "embed", "classify"),
    )
    tokenizer: str | None = option(
        None, "Folder or id of the tokenizer when it is not beside the weights."
    )
    revision: str | None = option(
        None, "Branch, tag or commit of a Hugging Face model; bundled models have none."
    )
    dtype: str = option(
        "auto",
        "Type of weights and activations; auto takes bfloat16 where the device computes it fast.",
        choices=("auto", "bfloat16", "float16", "float32"),
    )
    quantization: str | None = option(
        None,
        "Quantize weights while loading: int8 is weight-only, per channel; fp8 (per channel) and "
        "fp8_block (128 x 128) quantize activations too and need a GPU of compute capability 8.9. "
        "Checkpoints stored in 8-bit floats need no flag.",
        choices=("int8", "fp8", "fp8_block"),
    )
    load_format: str = option(
        "auto",
        "Checkpoint format; dummy fills seeded random weights from the config alone (a model "
        "without a tokenizer needs --tokenizer then, and smollm2 will do).",
        choices=("auto", "safetensors", "gguf", "dummy"),
    )
    max_model_len: int | None = option(
        None, "Longest prompt plus answer in tokens; by default what the model allows.", low=1
    )
    chat_template: str | None = option(
        None, "File with a Jinja chat template that replaces the model's own."
    )
    generation_config: str = option(
        "auto",
        "Take sampling defaults from the model's generation_config.json (auto) or not (none).",
        choices=("auto", "none"),
    )
    seed: int = option(0, "Seed of dummy weights and of requests that bring no seed.")

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def api_name(self) -> str:
        """The model name in the API."""
        return self.served_model_name or self.model
