"""Fields that ask for what is not served: an answer without it would be to another question."""

from __future__ import annotations

from collections.abc import Mapping

from xllm.frontend.protocol.sampling import CommonFields

# Field and reason, which continues the sentence "FIELD is not supported".
_COMMON = {
    "logits_processors": "no code is taken from a request",
    "return_tokens_as_token_ids": "use return_token_ids",
}
CHAT = _COMMON | {
    "functions": "use tools",
    "web_search_options": "nothing is searched",
    "documents": "put them into messages",
    "echo": "only /v1/completions repeats its prompt",
}
COMPLETION = _COMMON | {
    "suffix": "the model cannot fill in the middle",
    "prompt_embeds": "use prompt",
}


def check_served(body: CommonFields, unserved: Mapping[str, str]) -> None:
    """Check that a request asks for nothing of the kind.

    Raises:
        ValueError: it does; the message starts with the field's name.
    """
    for name, reason in unserved.items():
        # An empty object asks for a search, as it stands for its defaults.
        if (value := getattr(body, name)) or value == {}:
            raise ValueError(f"{name} is not supported: {reason}")
