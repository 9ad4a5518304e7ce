"""Runs prompts through a whole in-process engine and returns its raw vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xllm.assembly.inproc import InprocEngine
from xllm.core.config.flags import make_config
from xllm.core.messages.server import Failure
from xllm.core.request.finish import FinishReason
from xllm.core.request.request import Request
from xllm.core.request.sampling import SamplingParams

# Token ids, and where the second text of a pair begins (0: one text).
Prompt = tuple[Sequence[int], int]


class PoolingEngine:
    """An engine on float32 weights unless told otherwise."""

    def __init__(self, folder: Path, **options: Any) -> None:
        options = {"dtype": "float32", "num_threads": 1, "num_kv_tokens": 1024} | options
        self._engine = InprocEngine(make_config({"model": str(folder), **options}))
        self.ready = self._engine.start()
        self.failures: list[Failure] = []
        self._handles = 0

    def vectors(self, prompts: Sequence[Prompt], together: bool = True) -> np.ndarray:
        """(N, D), the prompts submitted at once or one after the other."""
        groups = [list(prompts)] if together else [[prompt] for prompt in prompts]
        return np.stack([vector for group in groups for vector in self._run(group)])

    def _run(self, prompts: list[Prompt]) -> list[np.ndarray]:
        requests = []
        for ids, second_start in prompts:
            self._handles += 1
            requests.append(
                Request(
                    handle=self._handles,
                    request_id=str(self._handles),
                    prompt_token_ids=np.array(ids, np.int32),
                    params=SamplingParams(max_tokens=0),
                    max_tokens=0,
                    second_start=second_start,
                )
            )
        self._engine.add(requests)
        found: dict[int, np.ndarray] = {}
        open_handles = {request.handle for request in requests}
        while self._engine.has_work or open_handles:
            for batch in self._engine.step():
                self.failures += batch.failures
                open_handles -= {failure.handle for failure in batch.failures}
                open_handles -= set(batch.handles.tolist())
                if batch.pooled is not None:
                    handles = batch.pooled.handles.tolist()
                    assert not found.keys() & set(handles), "a prompt was pooled twice"
                    found |= dict(zip(handles, batch.pooled.values, strict=True))
                    ended = dict(zip(batch.handles.tolist(), batch.finish.tolist(), strict=True))
                    assert all(ended[handle] == FinishReason.STOP for handle in handles)
        self._engine._running().scheduler.check()
        return [found[request.handle] for request in requests if request.handle in found]

    def stats(self) -> Any:
        return self._engine.stats()
