"""From what a client writes to token ids: conversations through the template, texts, lists of ids.

As everywhere in intake: nothing here waits, and every error is a ``ValueError`` that names the
field.
"""

from __future__ import annotations

from collections.abc import Sequence

from xllm.frontend.intake.limits import Limits
from xllm.frontend.intake.messages import num_chars, template_messages, template_variables
from xllm.frontend.intake.tools import ToolUse, tool_use
from xllm.frontend.intake.truncation import KeptText, last_tokens
from xllm.frontend.protocol.chat import ChatCompletionRequest
from xllm.frontend.protocol.completions import CompletionRequest
from xllm.frontend.protocol.tokenize import TokenizeRequest
from xllm.frontend.text.chat_template import RESERVED_NAMES, ChatTemplate
from xllm.frontend.text.tokenizer import Tokenizer


class Prompts:
    """Renders and tokenizes, as far as what comes may still fit the context.

    Args:
        tokenizer: the model's.
        limits: server maxima and model sizes.
        chat_template: None when the model has none; then conversations are refused.
    """

    def __init__(
        self, tokenizer: Tokenizer, limits: Limits, chat_template: ChatTemplate | None
    ) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        self._chat_template = chat_template

    @property
    def has_chat_template(self) -> bool:
        """Whether chats can be answered."""
        return self._chat_template is not None

    def render(
        self, body: ChatCompletionRequest | TokenizeRequest, tools: ToolUse | None = None
    ) -> str:
        """The prompt text of a conversation.

        Args:
            body: has the messages.
            tools: what it says about tools, if that was read already.

        Raises:
            ValueError: as the house has it; callers outside turn it into a ``RequestError``.
        """
        if self._chat_template is None:
            raise ValueError(
                "messages cannot be rendered: the model has no chat template; start the server "
                "with --chat-template FILE"
            )
        if body.chat_template is not None:
            raise ValueError("chat_template must come from the server, not from a request")
        variables = template_variables(body)
        for name in variables:
            if name in RESERVED_NAMES:
                raise ValueError(f"chat_template_kwargs must not contain {name!r}")
        self._limits.check_turns(len(body.messages or ()))
        max_token_chars = self._tokenizer.max_token_chars
        self._limits.check_text("messages", num_chars(body.messages or []), max_token_chars)
        proceed = bool(body.continue_final_message)
        if proceed and body.add_generation_prompt:
            raise ValueError("continue_final_message excludes add_generation_prompt")
        if tools is None and isinstance(body, ChatCompletionRequest):
            tools = tool_use(body)
        shown = body.tools if tools is None else tools.shown
        template = self._chat_template.with_tools if shown else self._chat_template
        return template.render(
            template_messages(body.messages or [], template.needs),
            tools=shown,
            add_generation_prompt=not proceed and body.add_generation_prompt is not False,
            continue_final_message=proceed,
            variables=variables,
            max_chars=self._limits.max_chars(max_token_chars),
        )

    def encode(self, field: str, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Token ids of texts that may still fit the context.

        Raises:
            ValueError: a text is too long, whatever its tokens are.
        """
        for text in texts:
            self._limits.check_text(field, len(text), self._tokenizer.max_token_chars)
        return self._tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)

    def of_completion(
        self, body: CompletionRequest, n: int, keep: int | None
    ) -> Sequence[tuple[str | None, Sequence[int]]]:
        """Text (None for ids) and token ids of every prompt, its last ``keep`` if that is given."""
        prompt = body.prompt
        entries = [prompt] if isinstance(prompt, str) else prompt
        if not entries:
            raise ValueError("prompt must not be empty")
        long = keep is None and len(entries) > self._limits.max_model_len
        if long and isinstance(entries[0], int):
            self._limits.check_prompt("prompt", entries, 0)  # type: ignore[arg-type]
        if all(type(entry) is int for entry in entries):
            return [(None, entries[-keep:] if keep else entries)]  # type: ignore[list-item]
        self._limits.check_sequences(len(entries), n)
        texts = [entry for entry in entries if isinstance(entry, str)]
        if len(texts) == len(entries):
            special = body.add_special_tokens is not False
            return self.encode_last("prompt", texts, special, keep)
        lists = [entry for entry in entries if isinstance(entry, list)]
        if len(lists) != len(entries):
            raise ValueError("prompt must hold only strings, only token ids or only lists of ids")
        return [(None, ids[-keep:] if keep else ids) for ids in lists]

    def encode_last(
        self, field: str, texts: Sequence[str], special: bool, keep: int | None
    ) -> Sequence[KeptText]:
        """Texts with their token ids, of which ``keep`` are kept if that is given."""
        if keep is None:
            return list(zip(texts, self.encode(field, texts, special), strict=True))
        return last_tokens(self._tokenizer, self._limits, texts, keep, add_special_tokens=special)
