"""Between text and token ids: tokenizer, incremental detokenizer, chat templates.

Owns vocabularies and Jinja. Knows no request, limit, stream or engine.
Public: ``Tokenizer``, ``Detokenizer``, ``ChatTemplate`` and their ``load_*`` functions.
"""

from xllm.frontend.text.chat_template import ChatTemplate
from xllm.frontend.text.detokenizer import Detokenizer
from xllm.frontend.text.loading import load_chat_template, load_tokenizer
from xllm.frontend.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Detokenizer", "Tokenizer", "load_chat_template", "load_tokenizer"]
