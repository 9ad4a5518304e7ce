"""The in-process engine with scripted tokens: one per sequence and step, the same for all."""

from types import SimpleNamespace

from tests.fakes import tokenizers
from tests.fakes.engine_client import batch, row
from xllm.assembly.text import ModelText
from xllm.core.messages.server import EngineReady, EngineStats, Failure, Started
from xllm.core.request.finish import FinishReason
from xllm.frontend.intake import SamplingDefaults
from xllm.frontend.parsers.answer import AnswerFormats
from xllm.frontend.text.chat_template import ChatTemplate

CONTEXT = 64
TOKENIZER = tokenizers.byte_level()
TEXT = "hello world, hello world"
TOKENS = TOKENIZER.encode(TEXT)
TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


class ScriptedEngine:
    """Says ``TOKENS`` to everybody, up to ``max_tokens``; a prompt that begins with 99 fails."""

    def __init__(self, config, on_progress=None):
        self.config = config
        self.files = SimpleNamespace()
        self.aborted = []
        self.closed = False
        self._running = {}

    def start(self):
        return EngineReady("fake", CONTEXT, TOKENIZER.vocab_size, 1024, 16.0)

    def close(self):
        self.closed = True

    @property
    def has_work(self):
        return bool(self._running)

    def stats(self):
        return EngineStats(num_running=len(self._running))

    def add(self, requests):
        for request in requests:
            for choice in range(request.params.n):
                self._running[request.handle, choice] = (request, 0)

    def abort(self, handles, choices, stopped=False):
        for handle, choice in zip(handles, choices, strict=True):
            self.aborted.append((handle, choice, stopped))
            for key in list(self._running):
                if key[0] == handle and choice in (-1, key[1]):
                    del self._running[key]

    def step(self):
        rows, started, failures = [], [], []
        for (handle, choice), (request, done) in list(self._running.items()):
            if request.prompt_token_ids[0] == 99:
                failures.append(Failure(handle, choice, "not a number"))
                del self._running[handle, choice]
                continue
            if done == 0:
                started.append(Started(handle, choice, 2, 0.0))
            last = done + 1 == request.max_tokens
            finish = FinishReason.LENGTH if last else FinishReason.NONE
            rows.append(row(handle, [TOKENS[done % len(TOKENS)]], finish, choice=choice))
            self._running[handle, choice] = (request, done + 1)
            if last:
                del self._running[handle, choice]
        return [batch(*rows, started=started, failures=failures)]


def load_text(config, files):
    """The text side of the fake model."""
    return ModelText(
        TOKENIZER,
        ChatTemplate(TEMPLATE),
        (1,),
        SamplingDefaults.from_generation_config({"temperature": 0.25}),
        AnswerFormats(TOKENIZER),
    )
