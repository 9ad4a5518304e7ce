"""A llama of two tiny layers with a byte tokenizer and a ChatML template, made on the spot."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CONTEXT = 512
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_model(folder: Path) -> Path:
    """Write config, tokenizer and template; the weights are made by ``--load-format dummy``."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(SPECIAL + letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(
        folder / "config.json",
        model_type="llama",
        architectures=["LlamaForCausalLM"],
        vocab_size=len(vocab),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        eos_token_id=vocab["<|im_end|>"],
        bos_token_id=vocab["<|endoftext|>"],
        torch_dtype="float32",
    )
    _write(
        folder / "tokenizer_config.json",
        eos_token="<|im_end|>",
        bos_token="<|endoftext|>",
        chat_template=TEMPLATE,
    )
    return folder


def _write(path: Path, **content: object) -> None:
    path.write_text(json.dumps(content))
