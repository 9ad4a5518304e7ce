"""gpt-oss: thoughts are messages in a channel (``parsers.harmony``)."""

from __future__ import annotations

from xllm.frontend.parsers.tools.gpt_oss import FORMAT

__all__ = ["FORMAT"]
