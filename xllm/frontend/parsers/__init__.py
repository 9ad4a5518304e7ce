"""Answer text to content, reasoning and tool calls, incrementally.

Owns the formats that models write these in. Knows no engine, no HTTP and no asyncio.
Public: ``MessageParser``, ``Parsed``, ``TextDelta``, ``ToolCallDelta``.
"""

from xllm.frontend.parsers.delta import MessageParser, Parsed, TextDelta, ToolCallDelta

__all__ = ["MessageParser", "Parsed", "TextDelta", "ToolCallDelta"]
