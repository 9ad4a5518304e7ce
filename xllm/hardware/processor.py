"""What the processor is: model name and instruction sets, as the kernel reports them."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

# Instruction sets that change how kernels run, fastest first, as /proc/cpuinfo names them.
_NOTABLE = ("amx_tile", "amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni", "avx512f", "avx2")


@dataclasses.dataclass(frozen=True, slots=True)
class Processor:
    """The first processor of the machine; all are taken to be alike."""

    model: str
    features: frozenset[str]

    @property
    def has_bf16(self) -> bool:
        """Whether it multiplies bfloat16 in hardware, at a higher rate than float32."""
        return bool(self.features & {"amx_bf16", "avx512_bf16"})

    @property
    def notable_features(self) -> list[str]:
        """The instruction sets that matter to kernels."""
        return [name for name in _NOTABLE if name in self.features]


@functools.cache
def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> Processor:
    """This machine's processor."""
    fields: dict[str, str] = {}
    try:
        for line in cpuinfo.read_text().splitlines():
            if not line.strip():
                break
            key, _, value = line.partition(":")
            fields[key.strip()] = value.strip()
    except OSError:
        pass
    model = fields.get("model name") or fields.get("CPU part") or "unknown processor"
    flags = fields.get("flags") or fields.get("Features") or ""
    return Processor(model, frozenset(flags.split()))
