"""A tiny BERT checkpoint with a WordPiece tokenizer, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "world", "cat", "dog", "##s", "a", "the", "."]
CLS, SEP = 2, 3
SIZE = 32


def write_config(folder: Path, **changes: Any) -> None:
    """A ``config.json``; weights are up to ``--load-format dummy``."""
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": len(WORDS),
        "hidden_size": SIZE,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 40,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | changes))


def write_tokenizer(folder: Path) -> None:
    """``tokenizer.json`` with BERT's frames of one text and of two."""
    tokenizer = Tokenizer(
        models.WordPiece(vocab={word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", SEP), ("[CLS]", CLS))
    tokenizer.add_special_tokens(WORDS[:4])
    tokenizer.save(str(folder / "tokenizer.json"))


def write_sentence_transformers(
    folder: Path, method: str = "mean_tokens", *, normalize: bool = True, max_len: int | None = None
) -> None:
    """``modules.json`` and what it names."""
    modules = [{"type": "sentence_transformers.models.Transformer", "path": ""}]
    modules.append({"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"})
    if normalize:
        modules.append({"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"})
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {f"pooling_mode_{mode}": False for mode in ("cls_token", "mean_tokens", "max_tokens")}
    pooling = json.dumps(modes | {f"pooling_mode_{method}": True})
    (folder / "1_Pooling/config.json").write_text(pooling)
    if max_len is not None:
        content = json.dumps({"max_seq_length": max_len})
        (folder / "sentence_bert_config.json").write_text(content)
