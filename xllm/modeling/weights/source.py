"""Finds a model's files: local folder, GGUF file, bundled short name or Hugging Face id.

No torch: assembly calls this before any process that computes exists.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from pathlib import Path
from typing import Any

import msgspec

from xllm.core.config.files import ModelFiles
from xllm.core.config.model import ModelConfig
from xllm.core.utils.gguf import read_header
from xllm.modeling.models.config import text_config
from xllm.modeling.weights.bundled import BUNDLED, Progress, bundled_path, pull
from xllm.modeling.weights.gguf_metadata import config_from_header
from xllm.modeling.weights.pooling import pooling_spec

logger = logging.getLogger(__name__)

_INDEX = "model.safetensors.index.json"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_GGUF = re.compile(r"([\w.-]+/[\w.-]+)/([\w./-]+\.gguf)")
_TEXT_FILES = ("*.json", "*.jinja")
_TOOL_USE, _TOOL_TEMPLATE = "tool_use", "additional_chat_templates/tool_use.jinja"


def resolve_model(config: ModelConfig, progress: Progress | None = None) -> ModelFiles:
    """Turn the model argument into local files, downloading what is missing.

    A local path wins over a bundled name, and that over a Hugging Face id. ``--tokenizer`` and
    ``--chat-template`` replace what lies beside the weights.

    Raises:
        ValueError: nothing fits the name, a needed file is missing or unreadable, or its format
            is not supported; the message says what was looked for. Or a revision of a bundled
            model is asked for.
        RuntimeError: a bundled model could not be fetched.
    """
    _check_revision(config)
    path = _local_path(config.model, config, progress)
    files = _from_gguf(path, config) if path.is_file() else _from_folder(path, config)
    if config.model in BUNDLED and path == bundled_path(config.model):
        own = {**BUNDLED[config.model].generation_config, **files.generation_config}
        files = dataclasses.replace(files, generation_config=own)
    folder = None if path.is_file() else path
    pooling = pooling_spec(config.task, text_config(files.config), folder)
    files = dataclasses.replace(files, pooling=pooling)
    if config.tokenizer is not None:
        files = _with_tokenizer(
            files, _local_path(config.tokenizer, config, progress, "--tokenizer")
        )
    if config.chat_template is not None:
        template = _read_text(Path(config.chat_template), "--chat-template")
        files = dataclasses.replace(files, chat_template=template, tool_template=None)
    return files


def _check_revision(config: ModelConfig) -> None:
    """Say so where ``--revision`` chooses nothing, before anything is fetched."""
    model, tokenizer = config.model, config.tokenizer
    if config.revision is None or (tokenizer is not None and not _is_here(tokenizer)):
        return
    if Path(model).expanduser().exists():
        # No error: a command may name a hub model here and a copy of it there.
        logger.warning(
            "--revision %s has no effect: model %r is a local path", config.revision, model
        )
    elif model in BUNDLED:
        raise ValueError(
            f"--revision is for models of the Hugging Face hub: {model!r} is a bundled model, "
            "which has one version"
        )


def _is_here(name: str) -> bool:
    """Whether a name means no model of the hub."""
    return name in BUNDLED or Path(name).expanduser().exists()


def _local_path(
    name: str, config: ModelConfig, progress: Progress | None, option: str = "model"
) -> Path:
    path = Path(name).expanduser()
    if path.exists():
        return path.resolve()
    if name in BUNDLED:
        return pull(name, progress)
    if match := _HUB_GGUF.fullmatch(name):
        return _from_hub(match[1], config.revision, match[2])
    if name.startswith((".", "/", "~")):  # no id of the hub begins so
        raise ValueError(f"{option}: there is no {name!r}")
    if _HUB_ID.fullmatch(name) and not name.endswith(".gguf"):
        return _from_hub(name, config.revision, weights=config.load_format != "dummy")
    raise ValueError(
        f"{option}: {name!r} is no local folder or GGUF file, no bundled model "
        f"({', '.join(BUNDLED)}) and no Hugging Face id (owner/name or owner/name/file.gguf)"
    )


def _from_hub(
    repo: str, revision: str | None, gguf_file: str | None = None, weights: bool = True
) -> Path:
    """Files of a hub model in the hub's own cache; with HF_HUB_OFFLINE, only from there."""
    import httpx
    from huggingface_hub import errors, hf_hub_download, snapshot_download

    patterns = [*_TEXT_FILES, "*.safetensors"] if weights else [*_TEXT_FILES]
    try:
        if gguf_file is not None:
            return Path(hf_hub_download(repo, gguf_file, revision=revision))
        # Subfolders hold other formats of the same weights, but for "1_Pooling" and the like and
        # for templates; "consolidated" is Mistral's own.
        ignored = ["?[!_]*/*.safetensors", "?[!_]*/*.json", "consolidated*"]
        folder = snapshot_download(
            repo, revision=revision, allow_patterns=patterns, ignore_patterns=ignored
        )
    except (errors.HfHubHTTPError, errors.HFValidationError, httpx.HTTPError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"model: cannot get {repo!r} from the Hugging Face hub: {reason}"
        ) from None
    return Path(folder)


def _from_folder(folder: Path, config: ModelConfig) -> ModelFiles:
    if not (folder / "config.json").exists():
        found = sorted(folder.glob("*.gguf"))
        if len(found) == 1:
            return _from_gguf(found[0], config)
        hint = f" and {len(found)} GGUF files; name one of them" if found else ""
        raise ValueError(f"model: {folder} has no config.json{hint}")
    if config.load_format == "gguf":
        raise ValueError(f"--load-format gguf needs a GGUF file, {folder} is a folder")
    dummy = config.load_format == "dummy"
    files = ModelFiles(
        name=config.model,
        folder=str(folder),
        config=_read_json(folder / "config.json"),
        format="dummy" if dummy else "safetensors",
        weights=() if dummy else _safetensors(folder),
        generation_config=_read_json(folder / "generation_config.json", missing_ok=True),
    )
    if (folder / "tokenizer.json").exists():
        return _with_tokenizer(files, folder)
    return files


def _safetensors(folder: Path) -> tuple[str, ...]:
    """Weight files: those the index names, else all; every one of them exists."""
    index = _read_json(folder / _INDEX, missing_ok=True).get("weight_map")
    if index is None:
        found = sorted(p for p in folder.glob("*.safetensors") if p.name[:12] != "consolidated")
        if not found:
            pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt*"))
            hint = "; pickled weights are not read, convert them to safetensors" if pickled else ""
            raise ValueError(f"model: {folder} has no *.safetensors file{hint}")
        return tuple(str(path) for path in found)
    if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
        raise ValueError(f"model: weight_map of {_INDEX} must give every tensor a file")
    names = sorted(set(index.values()))
    for name in names:
        if Path(name).name != name:
            raise ValueError(f"model: {_INDEX} names a file outside its folder: {name!r}")
        if not (folder / name).exists():
            raise ValueError(f"model: {folder} lacks {name}, which {_INDEX} names")
    return tuple(str(folder / name) for name in names)


def _from_gguf(path: Path, config: ModelConfig) -> ModelFiles:
    if config.load_format == "safetensors":
        raise ValueError(f"--load-format safetensors needs a folder, {path} is a file")
    header = read_header(path)
    dummy = config.load_format == "dummy"
    model_config = config_from_header(header, path)
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    return ModelFiles(
        name=config.model,
        folder=str(path.parent),
        config=model_config,
        format="dummy" if dummy else "gguf",
        weights=() if dummy else (str(path),),
        gguf_file=str(path) if tokens else None,
        generation_config={"eos_token_id": model_config["eos_token_id"]},
        **_gguf_templates(header.metadata),
        vocab_size=len(tokens) if tokens else None,
    )


def _with_tokenizer(files: ModelFiles, path: Path) -> ModelFiles:
    """``files`` with tokenizer and chat template of ``path``, a folder or a GGUF file."""
    if path.is_file():
        metadata = read_header(path).metadata
        tokens = metadata.get("tokenizer.ggml.tokens")
        if not tokens:
            raise ValueError(f"--tokenizer: {path} has no tokenizer")
        return dataclasses.replace(
            files,
            tokenizer_file=None,
            gguf_file=str(path),
            tokenizer_config={},
            **_gguf_templates(metadata),
            vocab_size=len(tokens),
        )
    tokenizer_file = path / "tokenizer.json"
    if not tokenizer_file.exists():
        raise ValueError(f"--tokenizer: {path} has no tokenizer.json")
    tokenizer_config = _tokenizer_config(path)
    return dataclasses.replace(
        files,
        tokenizer_file=str(tokenizer_file),
        gguf_file=None,
        tokenizer_config=tokenizer_config,
        **_chat_templates(path, tokenizer_config),
        vocab_size=_num_token_ids(tokenizer_file, tokenizer_config),
    )


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    """``tokenizer_config.json``; older checkpoints name special tokens in a file beside it."""
    config = _read_json(folder / "tokenizer_config.json", missing_ok=True)
    if "added_tokens_decoder" in config:
        return config
    named = _read_json(folder / "special_tokens_map.json", missing_ok=True)
    return named | {name: value for name, value in config.items() if value is not None}


def _chat_templates(folder: Path, tokenizer_config: dict[str, Any]) -> dict[str, Any]:
    """The default template and the one for tools: files, or in a JSON file, alone or by name."""
    files = {
        name: folder / path
        for name, path in (("default", "chat_template.jinja"), (_TOOL_USE, _TOOL_TEMPLATE))
        if (folder / path).exists()
    }
    if files:
        return _named_templates({n: _read_text(path, path.name) for n, path in files.items()})
    template = _read_json(folder / "chat_template.json", missing_ok=True).get("chat_template")
    template = template or tokenizer_config.get("chat_template")
    if isinstance(template, list):
        entries = [entry for entry in template if isinstance(entry, dict)]
        template = {entry.get("name"): entry.get("template") for entry in entries}
    return _named_templates(template if isinstance(template, dict) else {"default": template})


def _gguf_templates(metadata: dict[str, Any]) -> dict[str, Any]:
    key = "tokenizer.chat_template"
    named = {"default": metadata.get(key), _TOOL_USE: metadata.get(f"{key}.{_TOOL_USE}")}
    return _named_templates(named)


def _named_templates(named: dict[Any, Any]) -> dict[str, Any]:
    """The template fields of ``ModelFiles``."""
    default, tool_use = named.get("default"), named.get(_TOOL_USE)
    return {
        "chat_template": default if isinstance(default, str) else None,
        "tool_template": tool_use if isinstance(tool_use, str) else None,
    }


class _AddedToken(msgspec.Struct):
    id: int


class _Vocabulary(msgspec.Struct):
    vocab: dict[str, int] | list[Any] = {}


class _TokenizerFile(msgspec.Struct):
    """The part of tokenizer.json that tells how many ids exist."""

    model: _Vocabulary
    added_tokens: list[_AddedToken] = []


def _num_token_ids(path: Path, tokenizer_config: dict[str, Any]) -> int | None:
    """One more than the highest token id of a tokenizer.json and of the tokens added to it."""
    try:
        tokenizer = msgspec.json.decode(path.read_bytes(), type=_TokenizerFile)
    except msgspec.DecodeError as error:
        raise ValueError(f"model: cannot read {path}: {error}") from None
    vocab = tokenizer.model.vocab
    highest = max(vocab.values(), default=-1) if isinstance(vocab, dict) else len(vocab) - 1
    added = tokenizer_config.get("added_tokens_decoder") or {}
    more = [int(token_id) for token_id in added if token_id.isdecimal()]
    return max([highest, *more, *(token.id for token in tokenizer.added_tokens)]) + 1 or None


def _read_json(path: Path, missing_ok: bool = False) -> dict[str, Any]:
    if missing_ok and not path.exists():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"model: cannot read {path}: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"model: {path} must hold a JSON object")
    return value


def _read_text(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{what}: cannot read {path}: {error}") from None
