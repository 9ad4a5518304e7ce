"""Published tokenizers: the same ids and the same text as transformers and its library.

One table for all: a vocabulary joins by being named here.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import tokenizers
import transformers
from tokenizers import pre_tokenizers

from tests.contract.text.vocabularies import npm_tokenizer
from xllm.core.utils.gguf import read_header
from xllm.frontend.text import ChatTemplate, Detokenizer, Tokenizer
from xllm.frontend.text.gguf import tokenizer_from_gguf
from xllm.frontend.text.loading import tokenizer_from_file
from xllm.modeling.weights.bundled import pull

pytestmark = [pytest.mark.weights, pytest.mark.slow]

SENTENCES = (
    "Hello world",
    "  two  spaces   three",
    "def f():\n    x = [\n        1,\n\t\ttab\n\n\n",
    "日本語、ñandú 😀🎉 ½ ① é e\u0301 zażółć ⵣ 𓀀",
    "1234567 12 3.14 don't I'LL we've CamelCaseHTTPServer",
    " " * 70 + "x" + "\n" * 40,
    "<table><b>x</b></table> a▁b ▁▁",
    "",
    " ",
)
CONVERSATION = [
    {"role": "user", "content": "Hi  there\n"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "Name a river. 😀"},
]


def random_texts(seed: int) -> list[str]:
    rng = random.Random(seed)
    alphabets = [(32, 127), (0xA0, 0x3000), (0x4E00, 0x9FFF), (0x1F600, 0x1F640)]

    def char() -> str:
        return rng.choice([chr(rng.randrange(*rng.choice(alphabets))), " ", "\n"])

    return ["".join(char() for _ in range(40)) for _ in range(200)]


def from_json(name: str) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    folder = npm_tokenizer(name)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    path = str(folder / "tokenizer.json")
    return tokenizer_from_file(path, config), tokenizers.Tokenizer.from_file(path)


def gemma_gguf() -> tuple[Tokenizer, tokenizers.Tokenizer]:
    rebuilt = tokenizer_from_gguf(read_header(pull("gemma3-270m")).metadata)
    return rebuilt, tokenizers.Tokenizer.from_file(str(npm_tokenizer("gemma3") / "tokenizer.json"))


def smollm_gguf() -> tuple[Tokenizer, tokenizers.Tokenizer]:
    path = Path(pull("smollm2"))
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    backend = theirs.backend_tokenizer
    # transformers reads vocabulary and merges but not ``tokenizer.ggml.pre``; this is the
    # pre-tokenizer of the model's published tokenizer.json.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return tokenizer_from_gguf(read_header(path).metadata), backend


VOCABULARIES = {
    "qwen3": lambda: from_json("qwen3"),
    "llama3": lambda: from_json("llama3"),
    "gemma3": lambda: from_json("gemma3"),
    "gemma3-gguf": gemma_gguf,
    "smollm2-gguf": smollm_gguf,
}


@pytest.fixture(scope="module", params=VOCABULARIES)
def pair(request):
    return VOCABULARIES[request.param]()


def test_texts_become_the_same_ids(pair):
    ours, theirs = pair
    for text in (*SENTENCES, *random_texts(1)):
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special_tokens=False) == expected, text


def test_ids_of_text_become_the_same_text_in_every_chunking(pair):
    ours, theirs = pair
    for text in (*SENTENCES, *random_texts(2)):
        ids = ours.encode(text, add_special_tokens=False)
        expected = theirs.decode(ids)
        assert ours.decode(ids) == expected
        for step in (1, 2, 5):
            detokenizer = Detokenizer(ours, at_start=True)
            parts = [detokenizer.push(ids[i : i + step]) for i in range(0, len(ids), step)]
            assert "".join(parts) + detokenizer.flush() == expected


def test_random_ids_have_the_same_text(pair):
    ours, theirs = pair
    # Runs of byte tokens that are no UTF-8 are left out: the library replaces the whole run.
    ids_of_text = [i for i in range(ours.vocab_size) if is_text(ours, i)]
    rng = random.Random(3)
    for _ in range(300):
        ids = [rng.choice(ids_of_text) for _ in range(20)]
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=False)


def is_text(tokenizer: Tokenizer, token_id: int) -> bool:
    if token_id in tokenizer.special_ids:
        return False
    try:
        return bool(tokenizer.bytes_of(token_id).decode())
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize("name", ["qwen3", "llama3", "gemma3"])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_chat_templates_render_as_in_transformers(name, add_generation_prompt):
    folder = npm_tokenizer(name)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    template = ChatTemplate(
        theirs.chat_template, bos_token=theirs.bos_token, eos_token=theirs.eos_token
    )
    expected = theirs.apply_chat_template(
        CONVERSATION, tokenize=False, add_generation_prompt=add_generation_prompt
    )
    rendered = template.render(CONVERSATION, add_generation_prompt=add_generation_prompt)
    assert rendered == expected


def test_a_final_message_is_continued_as_in_transformers():
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(npm_tokenizer("llama3"))
    template = ChatTemplate(theirs.chat_template, bos_token=theirs.bos_token)
    messages = [*CONVERSATION, {"role": "assistant", "content": "One, two,"}]
    # That template opens the assistant's turn whatever it is told.
    expected = theirs.apply_chat_template(messages, tokenize=False, continue_final_message=True)
    rendered = template.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered == expected
