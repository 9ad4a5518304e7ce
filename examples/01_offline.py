"""Continue several prompts at once, in this process."""

from xllm import LLM, SamplingParams

PROMPTS = ["The capital of France is", "Once upon a time", "Water boils at"]

with LLM("smollm2", max_model_len=2048) as llm:
    params = SamplingParams(temperature=0.0, max_tokens=24)
    for output in llm.generate(PROMPTS, params):
        print(f"{output.prompt}|{output.outputs[0].text}")
