"""Why a sequence ended."""

from __future__ import annotations

import enum


class FinishReason(enum.IntEnum):
    """Wire code of a sequence's end; ``NONE`` means it goes on."""

    NONE = 0
    STOP = 1  # EOS, a stop token id or a stop string
    LENGTH = 2  # max_tokens, the context length or the KV capacity
    ABORT = 3  # the client went away or asked to cancel
    ERROR = 4  # the sequence was quarantined; the message travels beside the code

    @property
    def openai(self) -> str | None:
        """The ``finish_reason`` string of the OpenAI API."""
        return (None, "stop", "length", "abort", "error")[self]
