"""The unmodified ``anthropic`` package against ``/v1/messages``."""

import anthropic
import pytest
from served import CALL, KEY, run, serving

USER = [{"role": "user", "content": "Hello"}]
TOOLS = [
    {
        "name": "add",
        "description": "Adds.",
        "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
    }
]
ANSWER = "<think>Let me see.</think>I add." + CALL


def client_of(server, **options):
    options.setdefault("api_key", KEY)
    return anthropic.AsyncAnthropic(base_url=server.url, max_retries=0, **options)


def shown(message):
    """All of a message but the ids of its calls."""
    blocks = [block.to_dict() for block in message.content]
    return [{k: v for k, v in b.items() if k != "id"} for b in blocks], message.stop_reason


def test_a_message_is_answered_whole():
    async def scenario():
        async with serving("Hi there.") as server, client_of(server) as client:
            message = await client.messages.create(
                model="tiny", max_tokens=50, messages=USER, system="Be kind."
            )
            assert [block.to_dict() for block in message.content] == [
                {"type": "text", "text": "Hi there."}
            ]
            assert (message.role, message.model, message.stop_reason) == (
                *("assistant", "tiny", "end_turn"),
            )
            assert server.engine.prompts == ["[system]Be kind.[user]Hello[assistant]"]
            usage = message.usage
            assert usage.input_tokens == len(server.engine.requests[0].prompt_token_ids)
            assert usage.output_tokens == len(server.stack.ids("Hi there.")) + 1

    run(scenario())


def test_thoughts_text_and_calls_are_blocks_whole_and_streamed():
    async def scenario():
        fields = {"model": "tiny", "max_tokens": 500, "messages": USER, "tools": TOOLS}
        async with serving(ANSWER) as server, client_of(server) as client:
            whole = await client.messages.create(**fields)
            async with client.messages.stream(**fields) as stream:
                kinds = [event.type async for event in stream]
                streamed = await stream.get_final_message()
        thought, text, call = (block.to_dict() for block in whole.content)
        assert (thought["type"], thought["thinking"]) == ("thinking", "Let me see.")
        assert text == {"type": "text", "text": "I add."}
        assert (call["type"], call["name"], call["input"]) == (
            *("tool_use", "add", {"a": 1, "b": [2]}),
        )
        assert call["id"] and whole.stop_reason == "tool_use"
        assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
        assert kinds.count("content_block_stop") == 3
        assert shown(streamed) == shown(whole)
        assert streamed.usage.output_tokens == whole.usage.output_tokens

    run(scenario())


def test_a_call_cut_at_any_token_is_the_same_whole_and_streamed():
    """TL-35: cut anywhere, also inside the arguments; the package reads what came of them."""
    calls = CALL + CALL.replace("[2]", '{"c": ["x", "y\\u00e9"], "d": -1.5}')

    async def scenario():
        async with serving(ANSWER + calls) as server, client_of(server) as client:
            inputs = []
            for cut in range(30, len(server.stack.ids(ANSWER + calls)) + 4, 3):
                fields = {"model": "tiny", "max_tokens": cut, "messages": USER, "tools": TOOLS}
                whole = await client.messages.create(**fields)
                async with client.messages.stream(**fields) as stream:
                    streamed = await stream.get_final_message()
                assert shown(streamed) == shown(whole)
                inputs += [b.input for b in whole.content if b.type == "tool_use"]
            assert {"a": 1} in inputs and {"a": 1, "b": {"c": ["x"]}} in inputs
            assert whole.stop_reason == "tool_use"

    run(scenario())


def test_a_conversation_goes_on_with_the_result_of_a_tool():
    async def scenario():
        messages = [
            *USER,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": ""},
                    {"type": "text", "text": "I add."},
                    {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "3"},
                    {"type": "text", "text": "Well?"},
                ],
            },
        ]
        async with serving("Three.") as server, client_of(server) as client:
            message = await client.messages.create(model="tiny", max_tokens=9, messages=messages)
            counted = await client.messages.count_tokens(model="tiny", messages=messages)
            assert server.engine.prompts == [
                "[user]Hello[assistant]I add.[tool]3[user]Well?[assistant]"
            ]
            assert counted.input_tokens == message.usage.input_tokens

    run(scenario())


def test_why_it_ended_is_told():
    async def scenario():
        async with serving("One, two, three.") as server, client_of(server) as client:
            ask = {"model": "tiny", "messages": USER}
            cut = await client.messages.create(max_tokens=3, **ask)
            assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 3)
            stopped = await client.messages.create(max_tokens=50, stop_sequences=[", t"], **ask)
            assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", ", t")
            assert stopped.content[0].text == "One"

    run(scenario())


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"model": "other"}, "other"),
        ({"thinking": {"type": "enabled", "budget_tokens": 10}}, "budget_tokens"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "tool", "name": "nothing"}}, "nothing"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": []}, "messages"),
        ({"extra_body": {"temperature": 1e9}}, "temperature"),
        ({"extra_body": {"mcp_servers": [{"url": "https://x"}]}}, "mcp_servers"),
        ({"extra_body": {"truncate_prompt_tokens": 5}}, "truncate_prompt_tokens"),
    ],
)
def test_what_is_not_served_is_refused_in_anthropics_shape(fields, named):
    async def scenario():
        body = {"model": "tiny", "max_tokens": 5, "messages": USER, **fields}
        async with serving("x") as server, client_of(server) as client:
            with pytest.raises(anthropic.APIStatusError) as caught:
                await client.messages.create(**body)
            assert caught.value.body["type"] == "error"
            kind = "not_found_error" if caught.value.status_code == 404 else "invalid_request_error"
            assert caught.value.body["error"]["type"] == kind
            assert named in caught.value.body["error"]["message"]
            assert server.engine.requests == []

    run(scenario())


def test_the_key_comes_in_either_header():
    async def scenario():
        async with serving("Hi.") as server:
            ask = {"model": "tiny", "max_tokens": 9, "messages": USER}
            async with client_of(server, api_key=None, auth_token=KEY) as client:
                assert (await client.messages.create(**ask)).content
            async with client_of(server, api_key="sk-wrong") as client:
                with pytest.raises(anthropic.AuthenticationError) as caught:
                    await client.messages.create(**ask)
            assert caught.value.body["error"]["type"] == "authentication_error"

    run(scenario())
