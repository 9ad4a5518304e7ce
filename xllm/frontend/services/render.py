"""Requests that are prepared and shown, but not run."""

from __future__ import annotations

from xllm.frontend.intake.cost import intake_chars
from xllm.frontend.intake.factory import PreparedRequest, RequestFactory
from xllm.frontend.intake.served import ServedModels
from xllm.frontend.protocol.chat import ChatCompletionRequest
from xllm.frontend.protocol.completions import CompletionRequest
from xllm.frontend.protocol.render import RenderedPrompt, RenderedPrompts
from xllm.frontend.services.answers.shared import off_loop


class RenderService:
    """Shows what the engine would be given for a request.

    Args:
        factory: makes engine requests.
        served: the names that ``model`` may have.
    """

    def __init__(self, factory: RequestFactory, served: ServedModels) -> None:
        self._factory = factory
        self._served = served

    async def chat(self, body: ChatCompletionRequest) -> RenderedPrompt:
        """The prompt of a conversation.

        Raises:
            RequestError: the request would be refused.
        """
        self._served.adapter(body.model)
        return _shown(await off_loop(intake_chars(body), lambda: self._factory.from_chat(body)))

    async def completion(self, body: CompletionRequest) -> RenderedPrompts:
        """The prompts of a completion request.

        Raises:
            RequestError: the request would be refused.
        """
        self._served.adapter(body.model)
        prepared = await off_loop(intake_chars(body), lambda: self._factory.from_completion(body))
        return RenderedPrompts([_shown(each) for each in prepared])


def _shown(prepared: PreparedRequest) -> RenderedPrompt:
    request = prepared.request
    return RenderedPrompt(
        text=prepared.prompt_text,
        token_ids=request.prompt_token_ids.tolist(),
        num_tokens=len(request.prompt_token_ids),
        max_tokens=request.max_tokens,
        stop_token_ids=list(request.stop_token_ids),
        sampling_params=request.params,
    )
