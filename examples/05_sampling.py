"""Fields of vLLM's API beyond OpenAI's, over HTTP: greedy, seeded and constrained answers."""

import httpx

URL = "http://127.0.0.1:8000/v1/completions"
PROMPT = "My favourite animal is the"


def complete(**fields: object) -> str:
    """The text that continues ``PROMPT``."""
    body = {"model": "smollm2", "prompt": PROMPT, "max_tokens": 16, **fields}
    answer = httpx.post(URL, json=body, timeout=60)
    answer.raise_for_status()
    return answer.json()["choices"][0]["text"]


print("greedy:    ", complete(temperature=0))
print("seeded:    ", complete(seed=7, top_k=40, min_p=0.05))
print("same again:", complete(seed=7, top_k=40, min_p=0.05))
print("no dogs:   ", complete(temperature=0, bad_words=["dog"], stop=["."]))
