"""Which tokenizer a model's files describe."""

from __future__ import annotations

from typing import Any

import tokenizers

from xllm.core.config.files import ModelFiles
from xllm.core.utils.gguf import read_header
from xllm.frontend.text.chat_template import ChatTemplate
from xllm.frontend.text.gguf import tokenizer_from_gguf
from xllm.frontend.text.tokenizer import Tokenizer


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """Load from ``tokenizer.json`` (with ``tokenizer_config.json``), else from GGUF metadata.

    Raises:
        ValueError: the model brings no tokenizer, or one that is not supported.
    """
    if files.tokenizer_file is not None:
        return tokenizer_from_file(files.tokenizer_file, files.tokenizer_config)
    if files.gguf_file is not None:
        return tokenizer_from_gguf(read_header(files.gguf_file).metadata)
    raise ValueError(f"model {files.name!r} has no tokenizer.json; name one with --tokenizer")


def load_chat_template(files: ModelFiles, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The model's chat template (or the one that ``--chat-template`` named), if there is one.

    Raises:
        ValueError: the template is not valid Jinja.
    """
    if files.chat_template is None:
        return None
    return ChatTemplate(
        files.chat_template,
        tool_source=files.tool_template,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
    )


def tokenizer_from_file(path: str, config: dict[str, Any]) -> Tokenizer:
    """Load a ``tokenizer.json``.

    Args:
        path: the file.
        config: contents of ``tokenizer_config.json``; may be empty.

    Raises:
        ValueError: the file is not a tokenizer, or its decoder is not supported.
    """
    try:
        backend = tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{path} is not a tokenizer.json: {error}") from None

    _add_tokens(backend, config.get("added_tokens_decoder") or {})

    def token_id(name: str) -> int | None:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        found: int | None = backend.token_to_id(text) if isinstance(text, str) else None
        return found

    inputs = config.get("model_input_names")
    return Tokenizer(
        backend,
        bos_token_id=token_id("bos_token"),
        eos_token_id=token_id("eos_token"),
        adds_bos=config.get("add_bos_token"),
        adds_eos=config.get("add_eos_token"),
        gives_types=not isinstance(inputs, list) or "token_type_ids" in inputs,
    )


def _add_tokens(backend: tokenizers.Tokenizer, listed: dict[str, Any]) -> None:
    """The config's own list of added tokens wins: it may have more, or say of others that they
    are special."""
    own = backend.get_added_tokens_decoder()
    try:
        tokens = {int(i): tokenizers.AddedToken(**listed[i]) for i in sorted(listed, key=int)}
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(f"tokenizer_config.json: added_tokens_decoder: {error}") from None
    backend.add_tokens([token for i, token in tokens.items() if repr(own.get(i)) != repr(token)])
