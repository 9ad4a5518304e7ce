"""``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from xllm.frontend.intake.cost import intake_chars
from xllm.frontend.intake.factory import RequestFactory
from xllm.frontend.intake.served import ServedModels
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.protocol.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from xllm.frontend.services.answers.shared import off_loop

_MAX_CHARS = 1 << 20  # to tokenize at once, unless a context may hold more
_MAX_IDS = 1 << 17  # to detokenize at once, unless a context is longer


class TokenizeService:
    """Shows how a text or conversation becomes tokens, and back.

    Args:
        factory: brings tokenizer, chat template and limits.
        served: the names that ``model`` may have.
    """

    def __init__(self, factory: RequestFactory, served: ServedModels) -> None:
        self._factory = factory
        self._served = served

    async def tokenize(self, body: TokenizeRequest) -> TokenizeResponse:
        """Token ids of ``prompt``, ``content`` or ``messages``; longer than the context is fine.

        Raises:
            RequestError: none or several of them, a text of more than a million characters that no
                context holds, or messages that the template refuses.
        """
        self._served.adapter(body.model)
        given = [v for v in (body.prompt, body.content, body.messages) if v is not None]
        if len(given) != 1:
            raise RequestError(400, "give exactly one of prompt, content and messages")
        text = body.prompt if body.prompt is not None else body.content
        factory = self._factory
        most = max(_MAX_CHARS, factory.limits.max_chars(factory.tokenizer.max_token_chars))
        if text is not None and len(text) > most:
            field = "prompt" if body.prompt is not None else "content"
            raise RequestError.bad_field(
                field, f"must have at most {most} characters, got {len(text)}"
            )
        return await off_loop(intake_chars(body), lambda: self._tokenize(body, text))

    async def detokenize(self, body: DetokenizeRequest) -> DetokenizeResponse:
        """Text of token ids, special tokens included.

        Raises:
            RequestError: an id is not in the vocabulary.
        """
        self._served.adapter(body.model)
        limits = self._factory.limits
        most = max(limits.max_model_len, _MAX_IDS)
        if len(body.tokens) > most:
            raise RequestError.bad_field("tokens", f"must have at most {most} entries")
        try:
            limits.check_ids("tokens", body.tokens)
        except ValueError as error:
            raise RequestError.from_value_error(error) from None
        text = await off_loop(
            len(body.tokens),
            lambda: self._factory.tokenizer.decode(body.tokens, skip_special_tokens=False),
        )
        return DetokenizeResponse(text)

    def _tokenize(self, body: TokenizeRequest, text: str | None) -> TokenizeResponse:
        tokenizer = self._factory.tokenizer
        special = body.add_special_tokens
        if text is None:
            try:
                text = self._factory.prompts.render(body)
            except ValueError as error:
                raise RequestError.from_value_error(error) from None
            special = bool(special)  # the template writes them itself
        ids = tokenizer.encode(text, add_special_tokens=special is not False)
        return TokenizeResponse(
            tokens=ids,
            count=len(ids),
            max_model_len=self._factory.limits.max_model_len,
            token_strs=[tokenizer.printable(i) for i in ids] if body.return_token_strs else None,
        )
