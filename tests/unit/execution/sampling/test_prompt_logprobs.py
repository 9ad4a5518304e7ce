from __future__ import annotations

import torch

from xllm.execution.sampling import logprobs


def test_chunks_equal_the_whole_prompt(monkeypatch):
    torch.manual_seed(0)
    head = torch.randn(40, 9)
    hidden, targets = torch.randn(300, 9), torch.randint(0, 40, (300,))

    def run(chunk):
        monkeypatch.setattr(logprobs, "PROMPT_CHUNK", chunk)
        parts = list(logprobs.prompt_logprobs(hidden, targets, 3, lambda h: h @ head.T))
        assert all(len(part.ranks) <= chunk for part in parts)
        return [
            torch.cat([getattr(part, name) for part in parts])
            for name in ("token_ids", "logprobs", "ranks")
        ]

    whole, chunked = run(1000), run(7)
    assert torch.equal(whole[0], chunked[0])
    torch.testing.assert_close(whole[1], chunked[1], atol=1e-4, rtol=0)
    assert torch.equal(whole[2], chunked[2])
    expected = (hidden @ head.T).log_softmax(1).gather(1, targets[:, None])
    torch.testing.assert_close(whole[1][:, :1], expected)
