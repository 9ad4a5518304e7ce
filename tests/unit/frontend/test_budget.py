"""``thinking_token_budget``: what the engine is told of it, and what is refused."""

from __future__ import annotations

import pytest

from tests.fakes.services import run
from tests.unit.frontend.test_tool_use import ADD, NAMED, body, play, stack
from xllm.core.request.structured import StructuredOutput
from xllm.frontend.intake.thinking import MAX_BUDGET
from xllm.frontend.protocol import RequestError


def output_of(reasoning: str, budget: int | None = 8, **fields) -> StructuredOutput | None:
    made = stack(reasoning=reasoning)
    prepared = made.factory.from_chat(body(thinking_token_budget=budget, **fields))
    return prepared.request.structured_output


def test_without_a_form_the_answer_is_free_after_the_thoughts():
    output = output_of("qwen3", 8)
    assert output is not None and output.budget is not None
    assert (output.kind, output.after_text) == ("free", "</think>")
    assert (output.budget.num_tokens, output.budget.open_text) == (8, "<think>")
    assert output_of("qwen3", None) is None


def test_the_forced_tokens_spell_the_closing_tag():
    made = stack(reasoning="qwen3")
    output = made.factory.from_chat(body(thinking_token_budget=0)).request.structured_output
    assert output is not None and output.budget is not None
    forced = made.tokenizer.decode(output.budget.end_token_ids, skip_special_tokens=False)
    assert forced.strip() == "</think>"


@pytest.mark.parametrize("opens", ["implied", "prompt"])
def test_thoughts_that_are_open_already_are_counted_at_once(opens: str):
    fields = {}
    if opens == "prompt":
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<think>"}]
        fields = {
            "messages": messages,
            "continue_final_message": True,
            "add_generation_prompt": False,
        }
    output = output_of("deepseek_r1" if opens == "implied" else "qwen3", 8, **fields)
    assert output is not None and output.budget is not None
    assert (output.budget.open_token_id, output.budget.open_text) == (None, "")


@pytest.mark.parametrize(
    "fields",
    [{"response_format": {"type": "json_object"}}, {"tools": [ADD], "tool_choice": NAMED}],
    ids=["form", "call"],
)
def test_a_form_keeps_its_grammar_and_gains_the_budget(fields):
    plain, bounded = output_of("qwen3", None, **fields), output_of("qwen3", 8, **fields)
    assert plain is not None and bounded is not None and bounded.budget is not None
    assert (bounded.grammar_key, bounded.after_text) == (plain.grammar_key, plain.after_text)


@pytest.mark.parametrize("reasoning", ["none", "gpt_oss", "granite", "kimi_k2"])
def test_thoughts_that_no_single_tag_ends_have_no_budget(reasoning: str):
    with pytest.raises(RequestError, match="two tags") as caught:
        output_of(reasoning)
    assert (caught.value.status, caught.value.param) == (400, "thinking_token_budget")


@pytest.mark.parametrize("budget", [-1, MAX_BUDGET + 1])
def test_a_budget_out_of_range_is_refused(budget: int):
    with pytest.raises(RequestError, match=f"between 0 and {MAX_BUDGET}") as caught:
        output_of("qwen3", budget)
    assert (caught.value.status, caught.value.param) == (400, "thinking_token_budget")


def test_an_answer_whose_thoughts_were_cut_reads_as_ever():
    pieces = ["<think>", "Let me", "</think>", "Four."]
    answer = run(play(stack(reasoning="qwen3"), pieces, thinking_token_budget=2))
    assert answer["message"]["reasoning_content"] == "Let me"
    assert answer["message"]["content"] == "Four."
