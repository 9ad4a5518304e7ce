"""Constrained answers through HTTP on the tiny model, and with real weights offline."""

import json
import re
import time

import pytest
from harness import Server

PERSON = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "age", "kind"],
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog"]},
    },
}


def check_person(text: str) -> None:
    person = json.loads(text)
    assert set(person) == {"name", "age", "kind"}
    assert len(person["name"]) <= 12 and 0 <= person["age"] <= 150
    assert person["kind"] in ("cat", "dog")


def test_a_constraint_holds_whole_and_streamed(server: Server) -> None:
    body = {"temperature": 0, "max_tokens": 16, "guided_regex": "[0-9]{3}-[0-9]{4}"}
    (choice,) = server.complete(**body).json()["choices"]
    assert re.fullmatch("[0-9]{3}-[0-9]{4}", choice["text"])
    assert choice["finish_reason"] == "stop"
    with server.stream(prompt="Once upon a time", **body) as response:
        lines = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    parts = [json.loads(line)["choices"][0]["text"] for line in lines[:-1]]
    assert re.fullmatch("[0-9]{3}-[0-9]{4}", "".join(parts))


def test_every_choice_of_a_chat_follows_its_schema(server: Server) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hi"}],
        "response_format": form,
        "max_tokens": 300,
        "n": 3,
        "seed": 5,
    }
    answer = server.http.post("/v1/chat/completions", json=body, timeout=60).json()
    for choice in answer["choices"]:
        check_person(choice["message"]["content"])


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": {"type": "thing"}},
        {"guided_json": {"$ref": "#"}},
        {"guided_json": {"anyOf": [{"multipleOf": 99_999}] * 5_000}},
        {"guided_regex": "(unclosed["},
        {"guided_grammar": "start: nothing"},
        {"structured_outputs": {"choice": ["yes"]}, "allowed_token_ids": [5]},
    ],
    ids=["type", "endless", "large", "regex", "grammar", "contradiction"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_enforced_is_a_400(server: Server, fields: dict, stream: bool) -> None:
    response = server.complete(max_tokens=4, stream=stream, **fields)
    assert response.status_code == 400, response.text
    assert server.complete(max_tokens=2).status_code == 200


@pytest.mark.parametrize(
    "regex", ["(a{1,1000}){1,1000}", "((a{0,100}){0,100}){0,100}b", "(.*a){25}", "(a|aa)*(a|aaa)*b"]
)
def test_a_bomb_costs_little(server: Server, regex: str) -> None:
    began = time.monotonic()
    response = server.complete(max_tokens=8, guided_regex=regex)
    assert response.status_code in (200, 400)
    assert time.monotonic() - began < 10


@pytest.mark.slow
@pytest.mark.weights
def test_real_weights_answer_in_the_form_asked_for() -> None:
    from xllm import LLM, SamplingParams, StructuredOutputsParams

    chat = [{"role": "user", "content": "Describe a pet."}]
    with LLM("smollm2", max_model_len=512) as llm:

        def ask(form: StructuredOutputsParams, seed: int) -> list[str]:
            params = SamplingParams(
                temperature=1.0, seed=seed, n=4, max_tokens=120, structured_outputs=form
            )
            outputs = llm.chat(chat, params, use_tqdm=False)[0].outputs
            assert {output.finish_reason for output in outputs} == {"stop"}
            return [output.text for output in outputs]

        for seed in (0, 100, 200):
            for text in ask(StructuredOutputsParams(json=PERSON), seed):
                check_person(text)
        assert set(ask(StructuredOutputsParams(choice=("cat", "dog")), 1)) <= {"cat", "dog"}
        for text in ask(StructuredOutputsParams(regex=r"\d{3}-\d{4}"), 1):
            assert re.fullmatch(r"\d{3}-\d{4}", text)  # any digit of Unicode, as in Python
