"""Valid requests, one or more per endpoint and feature."""

from __future__ import annotations

from tests.fuzz.mutate import Seed

_HI = [{"role": "user", "content": "Hi"}]
_TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}]},
    {"role": "assistant", "content": "Three"},
    {"role": "user", "content": "Four?"},
]
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
            "required": ["city"],
        },
    },
}
_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
_CALLED = [
    *_HI,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "cold"},
]


def _chat(**fields: object) -> Seed:
    body = {"model": "tiny", "messages": _HI, "max_tokens": 4, **fields}
    return Seed("POST", "/v1/chat/completions", body)


def _complete(**fields: object) -> Seed:
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 4, **fields}
    return Seed("POST", "/v1/completions", body)


def _post(path: str, **fields: object) -> Seed:
    return Seed("POST", path, {"model": "tiny", **fields})


SEEDS: tuple[Seed, ...] = (
    *(
        Seed("GET", path)
        for path in ("/health", "/ready", "/ping", "/version", "/load", "/metrics")
    ),
    Seed("GET", "/v1/models"),
    Seed("GET", "/v1/models/tiny"),
    _chat(),
    _chat(messages=_TALK, stream=True, stream_options={"include_usage": True}),
    _chat(temperature=0.7, top_p=0.9, top_k=5, min_p=0.01, seed=3, n=2, user="u"),
    _chat(logprobs=True, top_logprobs=3, presence_penalty=0.5, frequency_penalty=-0.5),
    _chat(stop=["a", "\n\n"], include_stop_str_in_output=True, repetition_penalty=1.1),
    _chat(logit_bias={"5": -100, "9": 3.5}, bad_words=["zz"], min_tokens=2, ignore_eos=True),
    _chat(messages=_TALK, add_generation_prompt=False, continue_final_message=False),
    _chat(tools=[_TOOL], tool_choice="auto", parallel_tool_calls=True),
    _chat(tools=[_TOOL], tool_choice="required", max_tokens=8),
    _chat(
        tools=[_TOOL],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        stream=True,
    ),
    _chat(messages=_CALLED, tools=[_TOOL], chat_template_kwargs={"enable_thinking": False}),
    _chat(reasoning_effort="low", include_reasoning=False),
    _chat(response_format={"type": "json_object"}, max_tokens=8),
    _chat(
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "t", "strict": True, "schema": _SCHEMA},
        },
        max_tokens=8,
    ),
    _chat(structured_outputs={"regex": "[a-z]{2,5}"}, max_tokens=6),
    _complete(),
    _complete(prompt=["A", "B"], n=2, best_of=2, stream=True, echo=True, logprobs=2),
    _complete(prompt=[5, 6, 7], max_tokens=0, echo=True, logprobs=1),
    _complete(prompt=[[5, 6], [7]], prompt_logprobs=1, return_token_ids=True),
    _complete(prompt=["A B C", "D"], truncate_prompt_tokens=2, truncation_side="left", echo=True),
    _complete(stop_token_ids=[9], allowed_token_ids=[8, 9, 10], skip_special_tokens=False),
    _complete(structured_outputs={"choice": ["yes", "no"]}, priority=1, cache_salt="s"),
    _complete(structured_outputs={"grammar": 'start: "a" | "b"'}, stream=True),
    _complete(use_beam_search=True, n=2, temperature=0, length_penalty=1.0),
    _post("/tokenize", prompt="Hello", add_special_tokens=True, return_token_strs=True),
    _post("/tokenize", messages=_TALK, add_generation_prompt=True),
    _post("/detokenize", tokens=[5, 6, 7]),
    _post("/v1/chat/completions/render", messages=_TALK, tools=[_TOOL]),
    _post("/v1/completions/render", prompt=["A", "B"]),
    _post("/v1/messages", messages=_HI, max_tokens=4, system="Be brief.", stream=True),
    _post(
        "/v1/messages",
        messages=[
            *_HI,
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}],
            },
        ],
        max_tokens=6,
        tools=[{"name": "f", "description": "d", "input_schema": _SCHEMA}],
        tool_choice={"type": "auto"},
        stop_sequences=["x"],
        thinking={"type": "enabled", "budget_tokens": 1024},
        metadata={"user_id": "u"},
    ),
    _post("/v1/messages/count_tokens", messages=_HI, system=[{"type": "text", "text": "s"}]),
    _post("/v1/embeddings", input=["a", "b"], encoding_format="base64", dimensions=8),
    _post("/v1/rerank", query="a", documents=["b", "c"], top_n=1, return_documents=True),
    _post("/v1/score", text_1="a", text_2=["b", "c"]),
    _post("/v1/classify", input=["a"]),
    _post("/pooling", input=[[5, 6], [7]]),
    _post("/v1/responses", input="Hi", max_output_tokens=4, instructions="Be brief."),
    _post(
        "/v1/responses",
        input=[
            *_HI,
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "ok"},
        ],
        max_output_tokens=6,
        tools=[{"type": "function", "name": "f", "parameters": _SCHEMA, "strict": True}],
        tool_choice="auto",
        reasoning={"effort": "low"},
        metadata={"a": "b"},
        stream=True,
        store=False,
    ),
    _post(
        "/v1/responses",
        input=[
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}
        ],
        text={"format": {"type": "json_schema", "name": "t", "schema": _SCHEMA}},
        max_output_tokens=6,
        previous_response_id=None,
        background=False,
        truncation="disabled",
    ),
    Seed("GET", "/v1/responses/resp_none"),
    Seed("DELETE", "/v1/responses/resp_none"),
    _post("/v1/sample", prompt="Once upon", selector={"type": "literal", "value": "upon"}),
    _post(
        "/v1/sample",
        prompt=[5, 6, 7],
        selector={"type": "positions", "positions": [1, -1]},
        logprobs=2,
    ),
)
