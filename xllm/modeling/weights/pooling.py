"""What a model's files say about pooling: its task, and how a prompt becomes one vector.

Reads ``config.json`` and the files of sentence-transformers (``modules.json`` and what it names).
No torch: assembly asks before any process that computes exists.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from xllm.core.config.files import PoolingSpec
from xllm.modeling.models.config import required

logger = logging.getLogger(__name__)

# Families whose tokens see those after them: they cannot generate.
ENCODERS = ("bert",)
_GENERATES = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
# Answers per token or per choice, and heads of more than one layer.
_OTHER_HEADS = (
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
    "RewardModel",
)
_METHODS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}


def pooling_spec(task: str, config: dict[str, Any], folder: Path | None) -> PoolingSpec | None:
    """How the model pools; None for one that generates text.

    Args:
        task: ``--task``; ``auto`` decides by the architecture and the files.
        config: the text model's config.
        folder: where sentence-transformers files may lie.

    Raises:
        ValueError: the task does not fit the model, or its head or pooling is not supported.
    """
    modules = _modules(folder)
    if task == "auto":
        task = _guess(config, modules)
    encoder = config.get("model_type") in ENCODERS
    if task == "generate":
        if encoder:
            raise ValueError(
                f"--task generate: {config['model_type']} models are encoders; "
                "use --task embed or classify"
            )
        return None
    num_token_types = required(config, "type_vocab_size") if encoder else None
    if task == "classify":
        labels = _labels(config)
        return PoolingSpec(
            task=task,
            method="cls" if encoder else "last",
            whole_prompts=encoder,
            size=len(labels),
            labels=labels,
            activation=_activation(config),
            num_token_types=num_token_types,
        )
    method = _method(folder, modules) or ("cls" if encoder else "last")
    transformer = _transformer(folder)
    length = transformer.get("max_seq_length")
    _warn_of_prompt(folder)
    return PoolingSpec(
        task=task,
        method=method,
        whole_prompts=encoder or method != "last",
        size=required(config, "hidden_size"),
        max_len=length if isinstance(length, int) and length > 0 else None,
        lowercase=bool(transformer.get("do_lower_case")),
        normalize=not modules or "Normalize" in modules,
        dimensions=_dimensions(config),
        num_token_types=num_token_types,
    )


def _guess(config: dict[str, Any], modules: dict[str, str]) -> str:
    architectures = [str(name) for name in config.get("architectures") or ()]
    if any(name.endswith("ForSequenceClassification") for name in architectures):
        return "classify"
    if modules:
        return "embed"
    if others := [name for name in architectures if name.endswith(_OTHER_HEADS)]:
        raise ValueError(
            f"config.json: the head of {others[0]} is not supported; --task embed serves the model "
            "below it"
        )
    encoder = config.get("model_type") in ENCODERS
    generates = any(name.endswith(_GENERATES) for name in architectures) or not architectures
    return "generate" if generates and not encoder else "embed"


def _modules(folder: Path | None) -> dict[str, str]:
    """Kind of each sentence-transformers module (its class's last name) and its folder."""
    found = _read(folder / "modules.json") if folder is not None else None
    modules: dict[str, str] = {}
    for entry in found if isinstance(found, list) else ():
        kind, path = entry.get("type"), entry.get("path")
        if not isinstance(kind, str) or not isinstance(path, str):
            raise ValueError("modules.json: every entry needs a type and a path")
        modules[kind.rpartition(".")[2]] = path
    unknown = modules.keys() - {"Transformer", "Pooling", "Normalize"}
    if unknown:
        raise ValueError(f"modules.json: modules of type {', '.join(sorted(unknown))} are not read")
    return modules


def _method(folder: Path | None, modules: dict[str, str]) -> str | None:
    path = modules.get("Pooling")
    if folder is None or path is None:
        return None
    where = f"{path}/config.json"
    config = _read(folder / where)
    if not isinstance(config, dict):
        raise ValueError(f"{where} is missing or holds no object")
    known = {*_METHODS.values()}
    chosen = [name for key, name in _METHODS.items() if config.get(key)]
    others = [
        k for k in config if k.startswith("pooling_mode_") and k not in _METHODS and config[k]
    ]
    mode = config.get("pooling_mode")
    if mode is not None:
        chosen = [{"lasttoken": "last"}.get(str(mode), str(mode))]
    if len(chosen) != 1 or others or chosen[0] not in known:
        raise ValueError(f"{where}: pooling must be one of {', '.join(sorted(known))}")
    return chosen[0]


def _warn_of_prompt(folder: Path | None) -> None:
    config = _read(folder / "config_sentence_transformers.json") if folder is not None else None
    if isinstance(config, dict) and (name := config.get("default_prompt_name")):
        logger.warning(
            "config_sentence_transformers.json: the default prompt %r is not put before texts, "
            "they are embedded as they come",
            name,
        )


def _transformer(folder: Path | None) -> dict[str, Any]:
    """What sentence-transformers keeps of its first module."""
    config = _read(folder / "sentence_bert_config.json") if folder is not None else None
    return config if isinstance(config, dict) else {}


def _dimensions(config: dict[str, Any]) -> tuple[int, ...] | None:
    """Matryoshka sizes, as vLLM reads them from ``config.json``."""
    listed = config.get("matryoshka_dimensions")
    if isinstance(listed, list) and listed:
        return tuple(int(size) for size in listed)
    return () if config.get("is_matryoshka") else None


def _labels(config: dict[str, Any]) -> tuple[str, ...]:
    names = config.get("id2label")
    if isinstance(names, dict) and names:
        try:
            return tuple(str(names[str(i)]) for i in range(len(names)))
        except KeyError as error:
            raise ValueError(f"config.json: id2label has no entry for {error}") from None
    return tuple(f"LABEL_{i}" for i in range(int(config.get("num_labels") or 2)))


def _activation(config: dict[str, Any]) -> str:
    """What turns logits into scores: the cross-encoder's own choice, else by kind of problem."""
    nested = config.get("sentence_transformers")
    name = nested.get("activation_fn") if isinstance(nested, dict) else None
    name = name or config.get("sbert_ce_default_activation_function")
    if isinstance(name, str):
        kind = name.rpartition(".")[2].lower()
        if kind not in ("identity", "sigmoid", "softmax"):
            raise ValueError(f"config.json: the activation {name!r} is not supported")
        return kind
    problem = config.get("problem_type")
    if problem == "regression":
        return "identity"
    multi = problem == "multi_label_classification"
    return "sigmoid" if multi or len(_labels(config)) == 1 else "softmax"


def _read(path: Path) -> Any:
    if not path.exists():
        return None
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"model: cannot read {path}: {error}") from None
