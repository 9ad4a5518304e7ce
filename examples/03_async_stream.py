"""Stream two answers side by side from an event loop; the engine has a process of its own."""

import asyncio

from xllm import AsyncLLM, SamplingParams

PARAMS = SamplingParams(temperature=0.0, max_tokens=32)


async def show(llm: AsyncLLM, prompt: str) -> None:
    """Print what is new each time the answer has grown."""
    shown = 0
    async for output in llm.stream(prompt, PARAMS):
        text = output.outputs[0].text
        print(f"[{prompt[:12]}] {text[shown:]!r}")
        shown = len(text)


async def main() -> None:
    async with AsyncLLM("smollm2", max_model_len=2048) as llm:
        await asyncio.gather(show(llm, "The sun is"), show(llm, "A good friend"))


if __name__ == "__main__":
    asyncio.run(main())
