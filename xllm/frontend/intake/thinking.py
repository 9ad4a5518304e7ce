"""``thinking_token_budget``: how long a model may think before it has to answer."""

from __future__ import annotations

import msgspec

from xllm.core.request.request import Request
from xllm.core.request.structured import StructuredOutput, ThinkingBudget
from xllm.frontend.parsers.answer import AnswerFormats
from xllm.frontend.text.tokenizer import Tokenizer

FIELD = "thinking_token_budget"
MAX_BUDGET = 1 << 20  # more than any model's context


def bound_thoughts(
    request: Request,
    num_tokens: int,
    formats: AnswerFormats,
    tokenizer: Tokenizer,
    thinking: bool | None,
) -> Request:
    """A request whose thoughts have at most ``num_tokens`` tokens.

    Args:
        request: with its grammar, if it has one, that begins after the thoughts.
        thinking: whether the prompt has left the thoughts open (True) or closed them (False).

    Raises:
        ValueError: the number is out of range, or the model's thoughts cannot be ended.
    """
    if not 0 <= num_tokens <= MAX_BUDGET:
        raise ValueError(f"{FIELD} must be between 0 and {MAX_BUDGET}, got {num_tokens}")
    tags = formats.thought_tags
    if tags is None:
        raise ValueError(
            f"{FIELD} needs a model whose thoughts stand between two tags, and --reasoning-parser "
            "to say which"
        )
    output = request.structured_output
    if thinking is False or (output and not (output.after_token_ids or output.after_text)):
        return request  # there are no thoughts to bound
    opening, closing = tags
    open_id, close_id = tokenizer.token_id(opening), tokenizer.token_id(closing)
    opened = bool(thinking) or formats.thoughts_implied
    end_ids = tokenizer.encode_inside(closing) if close_id is None else [close_id]
    budget = ThinkingBudget(
        num_tokens,
        tuple(end_ids),
        None if opened else open_id,
        opening if not opened and open_id is None else "",
    )
    if output is None:
        output = StructuredOutput(
            "free",
            "",
            after_token_ids=() if close_id is None else (close_id,),
            after_text=closing if close_id is None else "",
        )
    output = msgspec.structs.replace(output, budget=budget)
    return msgspec.structs.replace(request, structured_output=output)
