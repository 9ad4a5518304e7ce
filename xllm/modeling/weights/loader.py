"""Loads a model: builds it from its config and fills every parameter from a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from xllm.core.config.files import ModelFiles
from xllm.modeling.layers.target import Loadable, Target
from xllm.modeling.models.config import resolve_max_model_len, text_config
from xllm.modeling.models.decoder import CausalLM
from xllm.modeling.models.pooling import DecoderPooler, PoolingModel
from xllm.modeling.models.registry import resolve
from xllm.modeling.quantization import load_method
from xllm.modeling.weights.checkpoint import Checkpoint, Progress
from xllm.modeling.weights.dummy import DummyCheckpoint
from xllm.modeling.weights.scaled import ScaledCheckpoint, stores_fp8

logger = logging.getLogger(__name__)

# Tables that are computed here, and the scale of queries, which stay in the model's dtype.
_LEFT_OVER = ("rotary_emb.inv_freq", ".q_scale")

AnyModel = CausalLM | PoolingModel

# Scales of an 8-bit KV cache are stored beside the attention's projections or inside them, there
# by compressed-tensors as those of their outputs.
_CACHE_SCALES = {
    f".{part}_proj.{name}": f".{part}_scale"
    for part in "kv"
    for name in (f"{part}_scale", "output_scale")
}
_LISTED = 5  # names that an error message spells out


def load_model(
    files: ModelFiles,
    *,
    dtype: torch.dtype,
    quantization: str | None = None,
    max_model_len: int | None = None,
    seed: int = 0,
    keep_fp8: bool = False,
    progress: Progress | None = None,
) -> CausalLM:
    """Build and load a model that generates, on the default torch device.

    Args:
        dtype: of weights (unless quantized) and activations.
        quantization: name of a quantization method, or None.
        max_model_len: longest sequence to serve; None takes what the model allows.
        seed: of dummy weights.
        keep_fp8: weights that the checkpoint stores in 8-bit floats stay as they are (and
            ``quantization`` "fp8" asks for no more); otherwise they are dequantized first.
        progress: called with bytes done and in total.

    Raises:
        ValueError: the family is unknown, the config does not fit it, more context is asked than
            it allows, or the checkpoint lacks a tensor or has one of the wrong shape.
    """
    model: CausalLM = _family(files).from_hf_config(
        text_config(files.config),
        **_options(files, dtype, quantization, max_model_len, keep_fp8),
    )
    load_weights(model, _open(files, model, seed), progress)
    return model.eval()


def load_pooling_model(
    files: ModelFiles,
    *,
    dtype: torch.dtype,
    quantization: str | None = None,
    max_model_len: int | None = None,
    seed: int = 0,
    keep_fp8: bool = False,
    progress: Progress | None = None,
) -> PoolingModel:
    """The same for a model that answers with vectors: an encoder, or a decoder without its head.

    ``files.pooling`` says how. Arguments and errors are those of ``load_model``.
    """
    assert files.pooling is not None
    config, family = text_config(files.config), _family(files)
    options = _options(files, dtype, quantization, max_model_len, keep_fp8)
    model: PoolingModel
    if hasattr(family, "pooling_from_hf_config"):
        model = family.pooling_from_hf_config(config, files.pooling, **options)
    else:
        base = family.from_hf_config(config, **options)
        model = DecoderPooler(base, files.pooling, options["method"])
    load_weights(model, _open(files, model, seed), progress)
    return model.eval()


def _family(files: ModelFiles) -> ModuleType:
    return resolve(text_config(files.config))


def _options(
    files: ModelFiles,
    dtype: torch.dtype,
    quantization: str | None,
    max_model_len: int | None,
    keep_fp8: bool,
) -> dict[str, Any]:
    """What every family's ``from_hf_config`` is told beside the config."""
    stored = stores_fp8(text_config(files.config))
    if stored and keep_fp8 and quantization in (None, "fp8"):
        quantization = "fp8_stored"
    return {
        "method": load_method(quantization),
        "dtype": dtype,
        "max_len": resolve_max_model_len(text_config(files.config), max_model_len),
        "vocab_size": files.vocab_size,
    }


def model_targets(model: nn.Module) -> dict[str, tuple[Target, Loadable]]:
    """Every checkpoint tensor that the model needs: its slot and the layer that owns it."""
    targets: dict[str, tuple[Target, Loadable]] = {}
    for path, module in model.named_modules():
        if isinstance(module, Loadable):
            targets |= {name: (target, module) for name, target in module.targets(path)}
    return targets


@torch.no_grad()
def load_weights(model: AnyModel, checkpoint: Checkpoint, progress: Progress | None = None) -> None:
    """Fill every target of ``model`` and pack each layer as soon as it is complete, so that at
    most one layer is held twice.

    Raises:
        ValueError: tensors are missing, of the wrong shape, or parts of a layer that this model
            has not; the message names them.
    """
    targets = model_targets(model)
    stored_names = _match(model, targets, checkpoint)
    waiting: dict[int, int] = {}
    for name in stored_names.values():
        layer = targets[name][1]
        waiting[id(layer)] = waiting.get(id(layer), 0) + 1
    total = sum(checkpoint.num_bytes(name) for name in stored_names)
    done = 0
    for stored_name, tensor in checkpoint.tensors(stored_names):
        target, layer = targets[stored_names[stored_name]]
        if not isinstance(tensor, Tensor) and not target.scaled:
            tensor = tensor.dequantize()
        target.load(tensor)
        waiting[id(layer)] -= 1
        if not waiting[id(layer)]:
            layer.after_load()
        done += checkpoint.num_bytes(stored_name)
        if progress is not None:
            progress(done, total)
    for module in model.modules():  # layers without tensors of their own: a tied head
        if isinstance(module, Loadable) and id(module) not in waiting:
            module.after_load()


def _match(
    model: AnyModel,
    targets: dict[str, tuple[Target, Loadable]],
    checkpoint: Checkpoint,
) -> dict[str, str]:
    """Names in the checkpoint to names of targets, after checking that they fit one to one."""
    matched: dict[str, str] = {}
    unused: list[str] = []
    renames = _renames(model, checkpoint)
    for stored_name, shape in checkpoint.shapes().items():
        name = renamed(stored_name, renames)
        if name not in targets:
            unused.append(stored_name)
            continue
        target = targets[name][0]
        if not target.fits(shape):
            raise ValueError(
                f"tensor {stored_name} has shape {list(shape)}, the model needs "
                f"{list(target.shape)}"
            )
        matched[stored_name] = name
    required = {name for name, (target, _) in targets.items() if not target.optional}
    missing = required - set(matched.values())
    if missing:
        hint = ""
        if "lm_head.weight" in missing:
            hint = " (config.json says tie_word_embeddings is false, so the head must be stored)"
        raise ValueError(f"the checkpoint lacks {_listed(missing)}{hint}")
    unexpected = [name for name in unused if not _expected_leftover(name, model)]
    parts = {"model", "lm_head", *(name.partition(".")[0] for name in targets)}
    inside = [n for n in unexpected if renamed(n, renames).partition(".")[0] in parts]
    if inside:  # to leave out a bias or a norm would give wrong answers
        raise ValueError(f"the model has no place for {_listed(inside)} of the checkpoint")
    if unexpected:
        logger.warning("the model does not use %s of the checkpoint", _listed(unexpected))
    return matched


def _renames(model: AnyModel, checkpoint: Checkpoint) -> dict[str, str]:
    """The family's renames; of tied matrices a checkpoint may store the head's name alone."""
    if not isinstance(model, CausalLM) or not model.lm_head.tied:
        return model.renames
    names = {renamed(name, model.renames) for name in checkpoint.shapes()}
    if "model.embed_tokens.weight" in names:
        return model.renames
    return model.renames | {"lm_head.": "model.embed_tokens."}


def renamed(name: str, renames: dict[str, str]) -> str:
    """The model's own name of what a checkpoint or an adapter calls ``name``."""
    renames = renames | _CACHE_SCALES
    for part, replacement in renames.items():
        if part.startswith("."):
            name = name.replace(part, replacement)
        elif name.startswith(part):
            name = replacement + name[len(part) :]
    return name


def _expected_leftover(name: str, model: AnyModel) -> bool:
    return name.endswith(_LEFT_OVER) or name.startswith(model.ignored)


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    shown = ", ".join(ordered[:_LISTED])
    more = len(ordered) - _LISTED
    return f"{shown} and {more} more" if more > 0 else shown


def _open(files: ModelFiles, model: AnyModel, seed: int) -> Checkpoint:
    if files.format == "dummy":
        targets = {name: target for name, (target, _) in model_targets(model).items()}
        return DummyCheckpoint(targets, seed)
    if files.format == "gguf":
        from xllm.modeling.weights.gguf import GgufCheckpoint

        return GgufCheckpoint(files.weights[0])
    from xllm.modeling.weights.stacked import StackedCheckpoint

    checkpoint = StackedCheckpoint(files.weights)
    return ScaledCheckpoint(checkpoint) if stores_fp8(text_config(files.config)) else checkpoint
