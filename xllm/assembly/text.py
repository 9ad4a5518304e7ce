"""The text side of a model: what turns requests into token ids and back, for every door."""

from __future__ import annotations

import dataclasses

from xllm.core.config import XllmConfig
from xllm.core.config.files import ModelFiles, PoolingSpec
from xllm.core.grammar import Vocabulary
from xllm.core.messages.server import EngineReady
from xllm.frontend.intake import (
    Limits,
    PoolingFactory,
    RequestFactory,
    SamplingDefaults,
    end_token_ids,
)
from xllm.frontend.intake.served import ServedModels
from xllm.frontend.output import OutputProcessor
from xllm.frontend.parsers.answer import AnswerFormats
from xllm.frontend.parsers.catalogue import reasoning_format, tool_format
from xllm.frontend.text import ChatTemplate, Tokenizer, load_chat_template, load_tokenizer


@dataclasses.dataclass(frozen=True, slots=True)
class ModelText:
    """Tokenizer, chat template, end tokens, sampling defaults and answer formats of one model."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    eos_token_ids: tuple[int, ...]
    defaults: SamplingDefaults
    formats: AnswerFormats
    pooling: PoolingSpec | None = None

    def request_factory(
        self, config: XllmConfig, ready: EngineReady, served: ServedModels | None = None
    ) -> RequestFactory:
        """Intake within the server's limits and the engine's sizes."""
        return RequestFactory(
            self.tokenizer,
            Limits.from_config(config.server, ready.max_model_len, ready.vocab_size),
            chat_template=self.chat_template,
            defaults=self.defaults,
            eos_token_ids=self.eos_token_ids,
            seed=config.model.seed,
            formats=self.formats,
            served=served,
            task="generate" if self.pooling is None else self.pooling.task,
        )

    def pooling_factory(self, config: XllmConfig, ready: EngineReady) -> PoolingFactory | None:
        """Intake of a model that pools; None for one that generates text."""
        if self.pooling is None:
            return None
        limits = Limits.from_config(config.server, ready.max_model_len, ready.vocab_size)
        return PoolingFactory(self.tokenizer, limits, self.pooling)

    def output_processor(self) -> OutputProcessor:
        """Engine outputs to text."""
        return OutputProcessor(self.tokenizer, self.eos_token_ids)


def load_vocabulary(files: ModelFiles, vocab_size: int) -> Vocabulary:
    """What grammars know of a model that samples ``vocab_size`` ids. Blocks.

    Raises:
        ValueError: as ``load_text``.
    """
    tokenizer = load_tokenizer(files)
    return tokenizer.vocabulary(vocab_size, end_token_ids(files, tokenizer))


def load_text(config: XllmConfig, files: ModelFiles) -> ModelText:
    """Load the text side. Blocks; imports no torch.

    Raises:
        ValueError: the model brings no tokenizer, a file of it cannot be used, or a parser is not
            known.
    """
    model_type = str(files.config.get("model_type", ""))
    template = (files.tool_template or "") + (files.chat_template or "")
    tools = tool_format(config.server.tool_call_parser, model_type, template)
    reasoning = reasoning_format(config.server.reasoning_parser, model_type, template)
    tokenizer = load_tokenizer(files)
    with_defaults = config.model.generation_config == "auto"
    return ModelText(
        tokenizer,
        load_chat_template(files, tokenizer),
        end_token_ids(files, tokenizer),
        SamplingDefaults.from_generation_config(files.generation_config if with_defaults else {}),
        AnswerFormats(tokenizer, tools, reasoning),
        files.pooling,
    )
