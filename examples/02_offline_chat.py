"""Answer a conversation with two choices, and show how sure the model was of each token."""

import math

from xllm import LLM, SamplingParams

MESSAGES = [
    {"role": "system", "content": "You answer in one sentence."},
    {"role": "user", "content": "What is a prime number?"},
]

with LLM("smollm2", max_model_len=2048) as llm:
    params = SamplingParams(n=2, temperature=0.7, seed=1, max_tokens=48, logprobs=0)
    (output,) = llm.chat(MESSAGES, params)
    for answer in output.outputs:
        # The token that ended the answer is no text and has no logprob.
        pairs = zip(answer.token_ids, answer.logprobs, strict=False)
        chosen = [position[token] for token, position in pairs]
        least = min(chosen, key=lambda entry: entry.logprob)
        print(answer.text)
        print(f"  least sure: {least.decoded_token!r} ({math.exp(least.logprob):.0%})")
