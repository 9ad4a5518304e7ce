"""A whole engine without processes: real scheduler, loop, worker and a tiny random model."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors.torch import save_file

from xllm.control.engine import EngineLoop, OverlapEngineLoop
from xllm.control.scheduler import build_scheduler
from xllm.core.config import (
    CacheConfig,
    ExecutionConfig,
    LoraConfig,
    ModelConfig,
    SchedulerConfig,
    XllmConfig,
)
from xllm.core.config.files import ModelFiles
from xllm.core.grammar import GrammarCache
from xllm.core.messages.server import EngineReady, OutputBatch
from xllm.core.request.finish import FinishReason
from xllm.core.request.request import Request
from xllm.core.request.sampling import SamplingParams
from xllm.core.request.structured import StructuredOutput
from xllm.execution.worker import Worker
from xllm.modeling.weights.loader import load_model, model_targets

MAX_LEN = 128
BLOCK_SIZE = 8
VOCAB_SIZE = 257
EOS = 256

_SHAPE = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": MAX_LEN,
    "rms_norm_eps": 1e-6,
    # Tied random weights would make every model repeat its last token.
    "tie_word_embeddings": False,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _SHAPE | {"model_type": "llama", "num_hidden_layers": 2, "hidden_act": "silu"},
    "qwen3_moe": _SHAPE
    | {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 2,
        "hidden_act": "silu",
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "norm_topk_prob": True,
    },
    "gpt_oss": _SHAPE
    | {
        "model_type": "gpt_oss",
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 20,
        "intermediate_size": 40,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
    },
    "gemma3_text": _SHAPE
    | {
        "model_type": "gemma3_text",
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "sliding_window": 20,
        "query_pre_attn_scalar": 16,
    },
}


def write_checkpoint(folder: Path, family: str) -> ModelFiles:
    """A random float32 checkpoint whose greedy answers vary from token to token."""
    config = CONFIGS[family]
    dummy = ModelFiles(name=family, folder=str(folder), config=config, format="dummy")
    model = load_model(dummy, dtype=torch.float32)
    generator = torch.Generator().manual_seed(len(family))
    tensors = {}
    for name, (target, _) in model_targets(model).items():
        if target.optional:
            continue
        noise = torch.randn(target.shape, generator=generator)
        if len(target.shape) == 2:
            tensors[name] = noise * 2 / math.sqrt(target.shape[1])
        else:
            ones = 1.0 if target.dummy == "ones" else 0.0
            tensors[name] = ones + 0.1 * noise
    path = folder / "model.safetensors"
    save_file(tensors, path)
    return dataclasses.replace(dummy, format="safetensors", weights=(str(path),))


def request(
    handle: int,
    prompt: list[int],
    max_tokens: int = 24,
    seed: int = 0,
    grammar: StructuredOutput | None = None,
    **params: Any,
) -> Request:
    """A request as the frontend would send it; one with a grammar ends with it."""
    return Request(
        handle=handle,
        request_id=str(handle),
        prompt_token_ids=np.array(prompt, np.int32),
        params=SamplingParams(max_tokens=max_tokens, **params),
        max_tokens=max_tokens,
        seed=seed,
        stop_token_ids=(EOS,) if grammar is not None else (),
        structured_output=grammar,
    )


_LENGTHS = (1, 7, 8, 9, 16, 33, 60, 24)
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "frequency_penalty": 0.4}


def varied_requests() -> list[Request]:
    """16 requests, every second one sampled; two of them share a prefix of 40 tokens."""
    rng = np.random.default_rng(0)
    shared = rng.integers(0, VOCAB_SIZE, 40).tolist()
    built = []
    for handle in range(16):
        prompt = rng.integers(0, VOCAB_SIZE, _LENGTHS[handle % len(_LENGTHS)]).tolist()
        if handle in (4, 12):
            prompt = shared + prompt
        params = SAMPLED if handle % 2 else {"temperature": 0.0}
        built.append(request(handle, prompt, 24, seed=handle, **params))
    return built


Tokens = dict[tuple[int, int], list[int]]  # by (handle, choice)


@dataclasses.dataclass(frozen=True)
class Truth:
    """A checkpoint, requests, and what each of them answers when it is alone and undisturbed."""

    files: ModelFiles
    requests: list[Request]
    tokens: Tokens


def collect(batch: OutputBatch, tokens: Tokens) -> int:
    """Add a batch's tokens; how many sequences it ended, all of them as they should."""
    assert not batch.failures, batch.failures
    flat = batch.token_ids.tolist()
    columns = (batch.handles, batch.choices, batch.counts, batch.finish)
    for handle, choice, count, finish in zip(*(c.tolist() for c in columns), strict=True):
        tokens.setdefault((handle, choice), []).extend(flat[:count])
        flat = flat[count:]
        assert finish in (FinishReason.NONE, FinishReason.LENGTH, FinishReason.STOP)
    return int(np.count_nonzero(batch.finish))


def tiny_config(
    *,
    overlap: bool | None = None,
    prefix_caching: bool = True,
    step_tokens: int = 512,
    num_kv_tokens: int = 16 * MAX_LEN,
    max_rows: int = 16,
    max_loras: int = 0,
    **scheduler: Any,
) -> XllmConfig:
    """float32 on the CPU; ``scheduler`` are more options of its slice."""
    return XllmConfig(
        model=ModelConfig(dtype="float32"),
        cache=CacheConfig(
            block_size=BLOCK_SIZE,
            num_kv_tokens=num_kv_tokens,
            enable_prefix_caching=prefix_caching,
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=max_rows,
            max_num_batched_tokens=step_tokens,
            async_scheduling=overlap,
            **scheduler,
        ),
        lora=LoraConfig(enable_lora=max_loras > 0, max_loras=max(max_loras, 1), max_lora_rank=8),
        # One thread: handing such tiny ops to a second one costs more than they take.
        execution=ExecutionConfig(device="cpu", num_threads=1),
    )


class TinyEngine:
    """Runs requests to their end, ``check()`` after every step."""

    def __init__(
        self,
        files: ModelFiles,
        *,
        overlap: bool = False,
        grammars: GrammarCache | None = None,
        full_step: int | None = None,
        **options: Any,
    ) -> None:
        config = tiny_config(overlap=overlap, **options)
        self.worker = Worker(config, files, grammars=grammars)
        info = self.worker.start()
        if full_step is not None:  # as if the device had one
            info = msgspec.structs.replace(info, full_step=full_step)
        self.scheduler = build_scheduler(config.scheduler, config.cache, info, grammars)
        loop = OverlapEngineLoop if overlap else EngineLoop
        ready = EngineReady(files.name, MAX_LEN, info.vocab_size, 0, 1.0)
        # Requests go straight to the loop: no inbox, no outbox.
        self.loop = loop(self.scheduler, self.worker, None, None, ready)
        self.batches: list[OutputBatch] = []

    def run(self, requests: list[Request]) -> Tokens:
        """Tokens of every choice."""
        for entry in requests:
            self.loop.submit(entry)
        tokens: Tokens = {}
        self.batches.clear()
        while self.scheduler.has_work:
            for batch in self.loop.step():
                self.batches.append(batch)
                collect(batch, tokens)
            self.loop.check()
        return tokens

    def run_until_idle(self, requests: list[Request]) -> Tokens:
        """Tokens of these requests alone; others may wait for something outside the engine."""
        tokens: Tokens = {}
        for entry in requests:
            self.loop.submit(entry)
        left = sum(entry.params.n for entry in requests)
        while left:
            for batch in self.loop.step():
                left -= collect(batch, tokens)
        return tokens

    @property
    def stats(self) -> Any:
        """Counters since start."""
        return self.scheduler.stats()


def solo_truth(family: str, folder: Path) -> Truth:
    """What each request answers when it runs alone, in one piece, without a prefix cache."""
    files = write_checkpoint(folder, family)
    requests = varied_requests()
    engine = TinyEngine(files, prefix_caching=False)
    tokens: Tokens = {}
    for entry in requests:
        tokens |= engine.run([entry])
    assert all(len(set(t)) > 3 for t in tokens.values()), "a stuck model proves nothing"
    return Truth(files, requests, tokens)
