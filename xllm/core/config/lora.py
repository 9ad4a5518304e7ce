"""Adapters: small additions to a model's matrices, chosen per request."""

from __future__ import annotations

import dataclasses

from xllm.core.config.option import check_bounds, option

# In the folder of an adapter, as PEFT writes it.
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LoraConfig:
    """Which adapters are served, and how much room they get."""

    enable_lora: bool = option(
        False, "Serve LoRA adapters; --lora-modules and loading at run time need it."
    )
    lora_modules: list[str] = option(
        [], "Adapter to load at start as NAME=FOLDER; repeatable; switches --enable-lora on."
    )
    max_loras: int = option(4, "Most adapters loaded at once.", low=1, high=512)
    max_lora_rank: int = option(16, "Largest rank of an adapter.", low=1, high=512)

    def __post_init__(self) -> None:
        check_bounds(self)
        if len(self.modules) > self.max_loras:
            raise ValueError(
                f"--lora-modules must name at most --max-loras={self.max_loras} adapters, "
                f"got {len(self.modules)}"
            )

    @property
    def enabled(self) -> bool:
        """Whether there may be adapters at all."""
        return self.enable_lora or bool(self.lora_modules)

    @property
    def modules(self) -> dict[str, str]:
        """Folder of each adapter that is loaded at start, by name.

        Raises:
            ValueError: an entry is not NAME=FOLDER, or a name comes twice.
        """
        found: dict[str, str] = {}
        for entry in self.lora_modules:
            name, _, folder = entry.partition("=")
            if not name or not folder or name in found:
                raise ValueError(
                    f"--lora-modules must be NAME=FOLDER with distinct names, got {entry!r}"
                )
            found[name] = folder
        return found
