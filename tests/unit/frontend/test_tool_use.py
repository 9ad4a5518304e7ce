"""Tools and reasoning of a request: what it may ask, what is enforced, how the answer is read."""

from __future__ import annotations

import json

import msgspec
import pytest

from tests.fakes import tokenizers as fakes
from tests.fakes.engine_client import row
from tests.fakes.services import EOS, STOP, Stack, collect, run
from xllm.core.grammar import GrammarCompiler, Vocabulary
from xllm.core.request.finish import FinishReason
from xllm.frontend.intake.messages import template_messages
from xllm.frontend.intake.tools import MAX_FORCED_CALLS, tool_use
from xllm.frontend.parsers.answer import AnswerFormats
from xllm.frontend.parsers.catalogue import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    reasoning_format,
    tool_format,
)
from xllm.frontend.parsers.tools.hermes import FORMAT as HERMES
from xllm.frontend.protocol import ChatCompletionRequest, RequestError, decode_request
from xllm.frontend.text.chat_template import ChatTemplate, TemplateNeeds


def function(name: str, **parameters):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


ADD = function("add", type="object", properties={"a": {"type": "integer"}}, required=["a"])
PING = {"type": "function", "function": {"name": "ping"}}
NAMED = {"type": "function", "function": {"name": "add"}}


def body(**fields) -> ChatCompletionRequest:
    fields.setdefault("messages", [{"role": "user", "content": "Hi"}])
    return decode_request(ChatCompletionRequest, msgspec.json.encode(fields))


def stack(tools="hermes", reasoning="none", tokenizer=None) -> Stack:
    made = Stack()
    made.factory.formats = AnswerFormats(
        tokenizer or made.tokenizer,
        tool_format(tools, "", ""),
        reasoning_format(reasoning, "", ""),
    )
    return made


async def play(made: Stack, pieces, finish=STOP, **fields):
    """The answer to a request, whose text comes in these pieces: texts or token ids."""
    task = made.start("chat", **fields)
    handle = await made.request()
    for piece in pieces:
        made.client.deliver(row(handle, made.ids(piece) if isinstance(piece, str) else piece))
    stop = EOS if finish == STOP else -1
    made.client.deliver(row(handle, [EOS] if finish == STOP else (), finish, stop_token=stop))
    result = await task
    if fields.get("stream"):
        return [c for e in await collect(result) for c in e["choices"]]
    return msgspec.to_builtins(result)["choices"][0]


def schema_of(made: Stack, **fields):
    output = made.factory.from_chat(body(**fields)).request.structured_output
    return json.loads(output.text), output


def test_conversations_with_tools_take_the_template_for_tools():
    made = stack()
    made.factory.prompts._chat_template = ChatTemplate(
        "plain", tool_source="{{ tools | length }} tools"
    )
    assert made.factory.prompts.render(body()) == "plain"
    assert made.factory.prompts.render(body(tools=[ADD])) == "1 tools"
    assert made.factory.prompts.render(body(tools=[ADD], tool_choice="none")) == "plain"


def test_a_named_tool_binds_the_answer_to_its_arguments():
    schema, output = schema_of(stack(), tools=[ADD, PING], tool_choice=NAMED)
    assert schema["required"] == ["a"]
    assert schema["additionalProperties"] is False
    assert output.after_text == ""


def test_required_binds_the_answer_to_an_array_that_ends():
    schema, _ = schema_of(stack(), tools=[ADD, PING], tool_choice="required")
    assert (schema["minItems"], schema["maxItems"]) == (1, 1)
    names = [o["properties"]["name"]["const"] for o in schema["items"]["anyOf"]]
    assert names == ["add", "ping"]
    fields = {"tool_choice": "required", "parallel_tool_calls": True}
    assert schema_of(stack(), tools=[ADD], **fields)[0]["maxItems"] == MAX_FORCED_CALLS


BYTES = [*(bytes([i]) for i in range(256)), b"<end>"]
LAMP = function(
    "lamp",
    type="object",
    properties={"state": {"enum": ["on", "off"]}, "level": {"enum": [1, 22]}},
    required=["state"],
)


def endless(output, cap: int) -> str:
    """What a model writes under a grammar that ends only where nothing else is left."""
    compiler = GrammarCompiler(Vocabulary(BYTES, {256}, [256], lambda text: list(text.encode())))
    matcher = compiler.compile(output).new_matcher().matcher
    # It would rather begin something new than end what is there, and rather wait than begin.
    wanted = [*b" \n\t,{[", *(i for i in range(33, 256) if i not in b",{[")]
    text = b""
    while len(text) < cap:
        mask = matcher.compute_bitmask()
        token = next((t for t in wanted if mask[t // 8] >> t % 8 & 1), None)
        if token is None:
            return text.decode()
        assert matcher.consume_tokens([token])
        text += BYTES[token]
    pytest.fail(f"still going on after {cap} tokens: {text[-200:]!r}")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("parallel", [None, False, True])
@pytest.mark.parametrize("tools", [[PING], [LAMP], [PING, LAMP]])
def test_a_required_call_ends_though_the_model_would_go_on_for_ever(tools, parallel, stream):
    """TL-39."""
    made = stack()
    fields = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": parallel}
    text = endless(schema_of(made, **fields)[1], 2000 if parallel else 300)
    most = MAX_FORCED_CALLS if parallel else 1
    made.client.requests.clear()
    answer = run(play(made, [text], stream=stream, max_tokens=4096, **fields))
    content, _, calls, finish = reading(answer, stream)
    assert (content, len(calls), finish) == ("", most, "tool_calls")
    for name, arguments in calls:
        assert name in {tool["function"]["name"] for tool in tools}
        assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize("nested", [True, False])
def test_allowed_tools_narrow_the_choice_and_not_the_prompt(nested):
    allowed = {"mode": "required", "tools": [PING]}
    choice = {"allowed_tools": allowed} if nested else allowed
    use = tool_use(body(tools=[ADD, PING], tool_choice={"type": "allowed_tools", **choice}))
    assert [tool["function"]["name"] for tool in use.shown] == ["add", "ping"]
    assert list(use.schemas) == ["ping"]
    assert use.forced == ""


def test_shared_parts_of_two_tools_schemas_stay_apart():
    def tool(name: str, kind: str):
        part = {"$ref": "#/$defs/part"}
        return function(name, properties={"x": part}, **{"$defs": {"part": {"type": kind}}})

    tools = [tool("f", "string"), tool("g", "integer")]
    schema, _ = schema_of(stack(), tools=tools, tool_choice="required")
    for option in schema["items"]["anyOf"]:
        ref = option["properties"]["arguments"]["properties"]["x"]["$ref"]
        kind = "string" if option["properties"]["name"]["const"] == "f" else "integer"
        assert schema["$defs"][ref.removeprefix("#/$defs/")] == {"type": kind}


def test_forced_arguments_are_an_object_whatever_else_a_schema_allows():
    tools = [function("f", type=["object", "null"])]
    schema, _ = schema_of(stack(), tools=tools, tool_choice="required")
    (call,) = schema["items"]["anyOf"]
    assert call["properties"]["arguments"]["type"] == "object"


def test_a_forced_call_comes_after_the_thoughts():
    made = stack(reasoning="qwen3")
    _, output = schema_of(made, tools=[ADD], tool_choice=NAMED)
    assert output.after_text == "</think>"
    form = {"type": "json_object"}
    assert schema_of(made, response_format=form)[1].after_text == "</think>"


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_forced_call_excludes_another_form(choice):
    fields = {"tools": [ADD], "response_format": {"type": "json_object"}}
    with pytest.raises(RequestError, match="excludes response_format") as caught:
        stack().factory.from_chat(body(tool_choice=choice, **fields))
    assert caught.value.param == "tool_choice"


def test_tools_of_choice_none_are_neither_shown_nor_called():
    use = tool_use(body(tools=[ADD], tool_choice="none"))
    assert use.shown is None
    assert use.schemas == {}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [function("no spaces")]}, "tools"),
        ({"tools": [function("f", type="string")]}, "tools"),  # arguments are an object
        ({"tools": [function("f", type=["array", "null"])]}, "tools"),
        ({"tools": [PING] * 129}, "tools"),
        ({"tools": [PING], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        (
            {
                "tools": [PING],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [ADD]},
            },
            "tool_choice",
        ),
        ({"reasoning_effort": "some"}, "reasoning_effort"),
        ({"thinking_token_budget": 8}, "thinking_token_budget"),  # no reasoning format
    ],
)
def test_what_cannot_be_served_is_refused_by_name(fields, param):
    with pytest.raises(RequestError) as caught:
        stack().factory.from_chat(body(**fields))
    assert (caught.value.status, caught.value.param) == (400, param)


CALL = '<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>'


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_read_from_the_answer(stream):
    made = play(stack(), ["Sure. ", CALL[:30], CALL[30:], CALL], tools=[ADD], stream=stream)
    answer = run(made)
    if not stream:
        message = answer["message"]
        assert message["content"] == "Sure. "
        calls = message["tool_calls"]
        assert [c["function"] for c in calls] == [{"name": "add", "arguments": '{"a":1}'}] * 2
        assert len({c["id"] for c in calls}) == 2
        assert answer["finish_reason"] == "tool_calls"
        return
    pieces = [p for c in answer for p in c["delta"].get("tool_calls", ())]
    for index in (0, 1):
        own = [p for p in pieces if p["index"] == index]
        assert [p["function"].get("name") for p in own if "id" in p] == ["add"]
        assert "".join(p["function"]["arguments"] for p in own) == '{"a":1}'
    assert "".join(c["delta"].get("content") or "" for c in answer) == "Sure. "
    assert answer[-1]["finish_reason"] == "tool_calls"


def test_without_parallel_calls_only_the_first_is_passed_on():
    answer = run(play(stack(), [CALL + CALL], tools=[ADD], parallel_tool_calls=False))
    assert len(answer["message"]["tool_calls"]) == 1


def test_without_tools_a_call_is_prose():
    answer = run(play(stack(), [CALL]))
    assert answer["message"]["content"] == CALL
    assert answer["finish_reason"] == "stop"


def reading(answer, stream):
    """What a client makes of an answer: content, reasoning, calls, why it ended."""
    if not stream:
        message = answer["message"]
        calls = [(*c["function"].values(),) for c in message.get("tool_calls") or ()]
        content, reasoning = message["content"] or "", message.get("reasoning") or ""
        return content, reasoning, calls, answer["finish_reason"]
    calls = {}
    for piece in (p for c in answer for p in c["delta"].get("tool_calls", ())):
        name, arguments = calls.get(piece["index"], ("", ""))
        name += piece["function"].get("name") or ""
        calls[piece["index"]] = (name, arguments + piece["function"]["arguments"])
    content, reasoning = (
        "".join(c["delta"].get(key) or "" for c in answer) for key in ("content", "reasoning")
    )
    return content, reasoning, [calls[i] for i in sorted(calls)], answer[-1]["finish_reason"]


CUTS = {
    "hermes": '<think>so</think>Ok <tool_call>\n{"name":"add","arguments":{"a":1,"b":"{x"}}\n'
    "</tool_call>",
    "llama3_json": '{"name":"add","parameters":{"a":1,"b":[2]}}; {"name":"ping","parameters":{}}',
    "mistral": '[TOOL_CALLS]add[ARGS]{"a":1,"b":"["}[TOOL_CALLS]ping[ARGS]{}',
    "qwen3_coder": "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>",
    "pythonic": "[add(a=1, b=[2]), ping()]",
    "gpt_oss": '<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>commentary '
    'to=functions.add<|message|>{"a":1}<|call|>',
}  # fmt: skip


@pytest.mark.parametrize("name", CUTS)
def test_a_call_cut_by_the_limit_is_the_same_in_both_modes(name):
    """TL-35: the cap is reached at every character, most of them inside a call."""

    async def cut_at(end, stream):
        made = stack(name, "qwen3" if name == "hermes" else "none")
        text = CUTS[name][:end]
        pieces = [text[i : i + 3] for i in range(0, end, 3)]
        tools = {"tools": [ADD, PING], "stream": stream}
        return reading(await play(made, pieces, FinishReason.LENGTH, **tools), stream)

    async def all_cuts():
        for end in range(1, len(CUTS[name])):
            whole = await cut_at(end, False)
            assert whole == await cut_at(end, True)
            assert whole[-1] == "length"
            for _, arguments in whole[2]:
                assert arguments == "" or arguments[0] == "{"

    run(all_cuts())


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("end", range(1, 40))
def test_a_forced_call_cut_by_the_limit_is_the_same_in_both_modes(choice, end):
    text = '{"a": 123456}' if choice is NAMED else '[{"name": "add", "arguments": {"a": 12}}]'
    read = [
        reading(
            run(
                play(
                    *(stack(), [text[:end]], FinishReason.LENGTH),
                    tools=[ADD],
                    tool_choice=choice,
                    stream=stream,
                )
            ),
            stream,
        )
        for stream in (False, True)
    ]
    assert read[0] == read[1]
    assert read[0][-1] == "length"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_forced_call_has_neither_content_nor_reasoning(choice, stream):
    text = '{"a":1}' if choice is NAMED else '[{"name":"add","arguments":{"a":1}}]'
    made = stack(reasoning="deepseek_v3")
    # The fake engine enforces no grammar; the check of it needs none to compile here.
    answer = run(play(made, [text[:5], text[5:]], tools=[ADD], tool_choice=choice, stream=stream))
    if stream:
        assert not any(c["delta"].get("content") or "reasoning" in c["delta"] for c in answer)
        pieces = [p["function"] for c in answer for p in c["delta"].get("tool_calls", ())]
        assert "".join(p["arguments"] for p in pieces) == '{"a":1}'
        assert answer[-1]["finish_reason"] == "tool_calls"
    else:
        assert answer["message"]["content"] is None
        assert "reasoning" not in answer["message"]
        assert answer["message"]["tool_calls"][0]["function"]["arguments"] == '{"a":1}'


def test_a_stop_string_in_the_thoughts_ends_them_cleanly():
    made = stack(reasoning="qwen3")
    answer = run(play(made, ["<think>It is 9.8", " or 9.11</think>ok"], stop=["9.8"]))
    assert answer["finish_reason"] == "stop"
    assert answer["message"]["content"] is None
    assert answer["message"]["reasoning"] == "It is"


OFF = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reasoning", [n for n in REASONING_FORMATS.names() if n != "gpt_oss"])
@pytest.mark.parametrize(
    "fields", [OFF, {"chat_template_kwargs": {"thinking": False}}, {"reasoning_effort": "none"}]
)
def test_without_thinking_an_answer_without_tags_is_content(reasoning, stream, fields):
    """RP-02: also where the format implies thoughts, and the template writes no tag either way."""
    made = stack(reasoning=reasoning)
    answer = run(play(made, ["It is", " plain."], stream=stream, **fields))
    if stream:
        assert "".join(c["delta"].get("content") or "" for c in answer) == "It is plain."
        assert not any("reasoning" in c["delta"] for c in answer)
    else:
        assert answer["message"]["content"] == "It is plain."
        assert answer["message"].get("reasoning") is None


def test_thoughts_that_come_uncalled_for_are_told_from_the_answer():
    answer = run(play(stack(reasoning="deepseek_r1"), ["<think>Hm</think>ok"], **OFF))
    assert (answer["message"]["reasoning"], answer["message"]["content"]) == ("Hm", "ok")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reasoning", ["qwen3", "deepseek_r1", "deepseek_v3", "granite"])
def test_a_named_tool_without_thinking_is_called_at_once(reasoning, stream):
    """TL-38: the grammar waits for no thoughts, and all of the answer is the call."""
    made = stack(reasoning=reasoning)
    fields = {"tools": [ADD], "tool_choice": NAMED, **OFF}
    assert schema_of(made, **fields)[1].after_text == ""
    made.client.requests.clear()
    answer = run(play(made, ['{"a"', ": 1}"], stream=stream, **fields))
    if stream:
        assert not any(c["delta"].get("content") or "reasoning" in c["delta"] for c in answer)
        pieces = [p["function"] for c in answer for p in c["delta"].get("tool_calls", ())]
        assert "".join(p["arguments"] for p in pieces) == '{"a": 1}'
        assert [p["name"] for p in pieces if "name" in p] == ["add"]
        assert answer[-1]["finish_reason"] == "tool_calls"
    else:
        message = answer["message"]
        assert (message["content"], message.get("reasoning")) == (None, None)
        assert message["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}


def test_reasoning_is_left_out_when_nobody_wants_it():
    made = stack(reasoning="qwen3")
    answer = run(play(made, ["<think>Hm</think>ok"], include_reasoning=False))
    assert answer["message"]["content"] == "ok"
    assert "reasoning" not in answer["message"]


def test_a_prompt_that_closed_the_thoughts_needs_no_parser():
    formats = AnswerFormats(fakes.byte_level(), None, reasoning_format("qwen3", "", ""))
    assert formats.thinking("...<think>\n\n</think>\n\n") is False
    assert formats.thinking("...<think>\n") is True
    assert formats.thinking("<think> said the user\n") is None
    assert formats.thinking("...", prefill="<think>so far") is True
    assert formats.thinking("...", prefill="It is") is False


def test_tags_that_are_special_tokens_are_read_by_their_id():
    """The end tag is a control token: hidden from text, and unlike the same letters as prose."""
    form = HERMES
    made = stack()
    spelled = type(form)(
        opens=("<bos>",), body=type(form.body)(close="<end>"), template=(), model_types=()
    )
    made.factory.formats = AnswerFormats(made.tokenizer, spelled, None)
    letters = [made.tokenizer.encode(c)[0] for c in "<bos>"]
    call = made.ids('{"name":"add","arguments":{"a":1}}')
    answer = run(play(made, ["Not ", letters, [0], call, [2], letters], tools=[ADD]))
    assert answer["message"]["content"] == "Not <bos><bos>"
    assert answer["message"]["tool_calls"][0]["function"]["arguments"] == '{"a":1}'


def test_history_with_reasoning_reaches_the_template_by_both_names():
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "ok", "reasoning": "why"},
        {"role": "user", "content": "Go"},
    ]
    turns = template_messages(body(messages=messages).messages, TemplateNeeds(False, False))
    assert (turns[1]["reasoning"], turns[1]["reasoning_content"]) == ("why", "why")


@pytest.mark.parametrize(
    ("model_type", "template", "tools", "reasoning"),
    [
        ("llama", "{{ messages }}", None, None),
        ("qwen3", "", "hermes", "qwen3"),
        ("x", "<tool_call> tool_call.arguments", "hermes", None),
        ("x", "<tool_call>\n<function=a>\n<parameter=b>", "qwen3_coder", None),
        ("deepseek_v3", "<｜tool▁calls▁begin｜> ```json", "deepseek_v3", None),
        ("gpt_oss", "<|channel|>analysis <|message|> <|constrain|>", "gpt_oss", "gpt_oss"),
        ("no such type", "", None, None),
    ],
)
def test_auto_finds_the_models_own_formats(model_type, template, tools, reasoning):
    found = tool_format("auto", model_type, template)
    assert found == (None if tools is None else TOOL_FORMATS.load(tools).FORMAT)
    found = reasoning_format("auto", model_type, template)
    assert found == (None if reasoning is None else REASONING_FORMATS.load(reasoning).FORMAT)


@pytest.mark.parametrize("find", [tool_format, reasoning_format])
def test_an_unknown_parser_lists_the_known(find):
    with pytest.raises(ValueError, match=r"unknown --.*-parser 'nope'; known: .*gpt_oss"):
        find("nope", "", "")


@pytest.mark.parametrize("name", ["openai", "phi4_mini_json", "qwen3_xml", "glm45", "kimi_k2"])
def test_names_of_other_engines_are_known(name):
    assert tool_format(name, "", "") is not None
