"""Intake: every limit is checked and named before the engine sees a request."""

from __future__ import annotations

import msgspec
import pytest

from tests.fakes import tokenizers as fakes
from xllm.core.config.files import ModelFiles
from xllm.core.config.server import ServerConfig
from xllm.core.request.sampling import SamplingParams
from xllm.frontend.intake import Limits, RequestFactory, SamplingDefaults, end_token_ids
from xllm.frontend.intake.bad_words import bad_word_token_ids
from xllm.frontend.intake.cost import intake_chars
from xllm.frontend.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    RequestError,
    TokenizeRequest,
    decode_request,
)
from xllm.frontend.protocol.messages import MessagesRequest
from xllm.frontend.protocol.sample import SampleRequest
from xllm.frontend.text.chat_template import ChatTemplate

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls %}({{ c.function.arguments | tojson }}){% endfor %}{% endfor %}"
    "{% if tools %}TOOLS{% endif %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
SERVER = ServerConfig()


def make_factory(tokenizer=None, *, max_model_len=64, template=TEMPLATE, **options):
    tokenizer = tokenizer or fakes.byte_level()
    chat_template = None
    if template is not None:
        chat_template = ChatTemplate(template, bos_token="<bos>")
    limits = Limits.from_config(SERVER, max_model_len, tokenizer.vocab_size)
    options.setdefault("eos_token_ids", (1, 2))
    return RequestFactory(tokenizer, limits, chat_template=chat_template, **options)


def completion(factory, **fields):
    fields.setdefault("prompt", "hello")
    body = decode_request(CompletionRequest, msgspec.json.encode(fields))
    return [prepared.request for prepared in factory.from_completion(body)]


def chat(factory, messages="Hi", **fields):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    body = decode_request(
        ChatCompletionRequest, msgspec.json.encode({"messages": messages, **fields})
    )
    return factory.from_chat(body)


def refusal(call, *args, **fields):
    with pytest.raises(RequestError) as caught:
        call(*args, **fields)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "ten"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": 129}, "n"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": [1]}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -5}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3.0}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-320}, "repetition_penalty"),
        ({"min_tokens": 8, "max_tokens": 4}, "min_tokens"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"seed": 2**70}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": "x" * 5000}, "stop"),
        ({"stop_token_ids": [10_000_000]}, "stop_token_ids"),
        ({"stop_token_ids": [-3], "min_tokens": 1}, "stop_token_ids"),
        ({"logit_bias": {"10000000": 5}}, "logit_bias"),
        ({"logit_bias": {"abc": 5}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [10_000_000]}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": ["a"] * 257}, "bad_words"),
        ({"bad_words": ["a" * 5000]}, "bad_words"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [5, 10_000_000]}, "prompt"),
        ({"prompt": [-1, 5]}, "prompt"),
        ({"prompt": [5, 5279552648203111001]}, "prompt"),
        ({"prompt": ["a"] * 1025}, "prompt"),
        ({"prompt": ["a"] * 1000, "n": 2}, "n"),
        ({"allowed_token_ids": [5] * 10_000}, "allowed_token_ids"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 1 << 40}, "best_of"),
        ({"response_format": {"type": "yamlish"}}, "response_format"),
        ({"response_format": {}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"priority": 2**40}, "priority"),
        ({"request_id": "x" * 129}, "request_id"),
    ],
)
def test_a_bad_completion_field_is_refused_and_named(fields, param):
    error = refusal(completion, make_factory(), **fields)
    assert error.param == param
    assert error.message.startswith(param)


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_json_does_not_have_are_refused(literal):
    body = f'{{"prompt": "a", "temperature": {literal}}}'.encode()
    assert refusal(decode_request, CompletionRequest, body).status == 400


@pytest.mark.parametrize(
    "body", [b'{"prompt": [', b"", b"[1,2]", b'"text"', b"\xff\xfe{}", b"[" * 100_000]
)
def test_a_body_that_is_no_json_object_is_a_400(body):
    assert refusal(decode_request, CompletionRequest, body).message.startswith("the body")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 100}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": ""}] * 65}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
    ],
)
def test_a_bad_chat_field_is_refused_and_named(fields, param):
    error = refusal(chat, make_factory(), **fields)
    assert error.param == param
    assert error.message.startswith(param)


@pytest.mark.parametrize(
    ("ask", "fields"),
    [
        (chat, {"functions": [{"name": "f", "parameters": {}}]}),
        (chat, {"web_search_options": {}}),
        (chat, {"documents": [{"text": "x"}]}),
        (chat, {"echo": True}),
        (chat, {"modalities": ["text", "audio"]}),
        (chat, {"return_tokens_as_token_ids": True}),
        (completion, {"return_tokens_as_token_ids": True}),
        (completion, {"logits_processors": ["os.system"]}),
        (completion, {"prompt_embeds": "AAAA"}),
        (completion, {"suffix": "end"}),
    ],
)
def test_what_is_not_served_is_refused_rather_than_ignored(ask, fields):
    (name,) = fields
    error = refusal(ask, make_factory(), **fields)
    assert error.param == name and name in error.message


@pytest.mark.parametrize("value", [None, [], False])
def test_asking_for_none_of_it_is_accepted(value):
    chat(make_factory(), functions=value, documents=value, logits_processors=value)
    chat(make_factory(), echo=False, modalities=["text"])
    completion(make_factory(), prompt_embeds=value, suffix="", return_tokens_as_token_ids=False)


def test_harmless_and_unknown_fields_are_accepted():
    prepared = chat(
        make_factory(),
        user="u-17",
        metadata={"k": "v"},
        store=False,
        service_tier="auto",
        logit_bias=None,
        stop=None,
        tools=None,
        seed=None,
        top_p=None,
        stream_options=None,
        response_format={"type": "text"},
        presence_penalty=0,
        some_new_field=[1],
    )
    assert prepared.request.params.n == 1


def test_a_long_prompt_is_refused_with_its_length_and_the_contexts():
    error = refusal(completion, make_factory(max_model_len=8), prompt=[5] * 9)
    assert "9 tokens" in error.message
    assert "context length of 8 tokens" in error.message


def test_a_prompt_may_fill_the_context_only_to_be_scored():
    factory = make_factory(max_model_len=8)
    assert refusal(completion, factory, prompt=[5] * 8).param == "prompt"
    assert completion(factory, prompt=[5] * 8, max_tokens=0)[0].max_tokens == 0


def test_a_huge_text_is_refused_without_being_tokenized(monkeypatch):
    factory = make_factory()
    monkeypatch.setattr(factory.tokenizer, "encode_batch", pytest.fail)
    error = refusal(completion, factory, prompt="lorem ipsum " * 400_000)
    assert "4800000 characters" in error.message
    error = refusal(chat, factory, "lorem ipsum " * 400_000)
    assert "cannot fit the context length" in error.message


def ids_of(request):
    return request.prompt_token_ids.tolist()


@pytest.mark.parametrize("adds_bos", [True, False])
def test_the_last_tokens_of_a_long_prompt_are_kept(adds_bos):
    tokenizer = fakes.byte_level(adds_bos=adds_bos)
    factory = make_factory(tokenizer)
    frame = tokenizer.frame_size
    whole = tokenizer.encode("abcdefghij")
    for keep in range(1, len(whole) + 2):
        (cut,) = completion(factory, prompt="abcdefghij", truncate_prompt_tokens=keep)
        kept = whole[-max(keep - frame, 0) :] if keep > frame else []
        assert ids_of(cut) == (whole if keep >= len(whole) else whole[:frame] + kept)
        (cut,) = completion(factory, prompt=[5, 6, 7, 8], truncate_prompt_tokens=keep)
        assert ids_of(cut) == [5, 6, 7, 8][-keep:]
    pair = completion(factory, prompt=[[5, 6, 7], [8]], truncate_prompt_tokens=2)
    assert [ids_of(request) for request in pair] == [[6, 7], [8]]
    long = completion(factory, prompt="z" * 1_000_000, truncate_prompt_tokens=8)
    assert len(ids_of(long[0])) == 8


def test_truncation_by_minus_one_leaves_room_for_the_answer():
    factory = make_factory(max_model_len=64)
    for max_tokens, kept in ((None, 48), (10, 54), (0, 64)):
        fields = {} if max_tokens is None else {"max_tokens": max_tokens}
        (cut,) = completion(factory, prompt=[5] * 99, truncate_prompt_tokens=-1, **fields)
        assert len(ids_of(cut)) == kept
    cut = chat(factory, "x" * 99, truncate_prompt_tokens=-1).request
    assert (len(ids_of(cut)), cut.max_tokens) == (63, 1)
    error = refusal(completion, factory, prompt=[5], max_tokens=64, truncate_prompt_tokens=-1)
    assert error.param == "truncate_prompt_tokens" and "64" in error.message


def test_a_chat_keeps_the_end_of_its_rendered_prompt():
    factory = make_factory()
    whole = chat(factory, "Hello you")
    cut = chat(factory, "Hello you", truncate_prompt_tokens=7)
    assert ids_of(cut.request) == ids_of(whole.request)[-7:]
    assert whole.prompt_text is not None and cut.prompt_text is None


@pytest.mark.parametrize("asked", [0, -2, 64, 2**40])
@pytest.mark.parametrize("ask", [completion, chat])
def test_a_truncation_out_of_bounds_is_refused_with_the_limit(ask, asked):
    error = refusal(ask, make_factory(max_model_len=64), truncate_prompt_tokens=asked)
    assert error.param == "truncate_prompt_tokens"
    assert error.message == f"truncate_prompt_tokens must be -1 or between 1 and 63, got {asked}"


def test_the_beginning_of_a_prompt_cannot_be_kept():
    error = refusal(completion, make_factory(), truncation_side="right")
    assert error.param == "truncation_side"


@pytest.mark.parametrize("schema", [TokenizeRequest, SampleRequest, MessagesRequest])
def test_where_prompts_are_never_cut_the_wish_is_refused(schema):
    body = b'{"prompt": "x", "truncate_prompt_tokens": 5}'
    with pytest.raises(RequestError, match="truncate_prompt_tokens") as caught:
        decode_request(schema, body)
    assert caught.value.param == "truncate_prompt_tokens"


def test_long_arguments_of_calls_are_refused_before_they_are_read():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[" * 500_000}}
    turns = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    error = refusal(chat, make_factory(), turns)
    assert "cannot fit the context length" in error.message


def test_max_tokens_is_clipped_to_the_room_that_the_prompt_leaves():
    factory = make_factory(max_model_len=20)
    assert completion(factory, prompt=[5] * 15, max_tokens=100)[0].max_tokens == 5
    assert completion(factory, prompt=[5] * 3)[0].max_tokens == 16
    factory = make_factory(max_model_len=64)
    unlimited = chat(factory, "a").request
    assert unlimited.max_tokens == 64 - len(unlimited.prompt_token_ids)
    request = chat(factory, "a", max_completion_tokens=2, max_tokens=9).request
    assert request.max_tokens == 2


def test_prompts_of_all_four_shapes_are_understood():
    factory = make_factory()
    hello = factory.tokenizer.encode("hello")
    ids = [r.prompt_token_ids.tolist() for r in completion(factory, prompt="hello")]
    assert ids == [hello]
    ids = [r.prompt_token_ids.tolist() for r in completion(factory, prompt=["hello", "the"])]
    assert ids == [hello, factory.tokenizer.encode("the")]
    assert [r.prompt_token_ids.tolist() for r in completion(factory, prompt=[4, 5])] == [[4, 5]]
    nested = completion(factory, prompt=[[4, 5], [6]])
    assert [r.prompt_token_ids.tolist() for r in nested] == [[4, 5], [6]]


def test_handles_are_unique():
    factory = make_factory()
    handles = [r.handle for r in completion(factory, prompt=["a", "b"]) + completion(factory)]
    assert len(set(handles)) == 3


def test_a_template_that_writes_bos_gives_exactly_one_on_both_paths():
    factory = make_factory(fakes.byte_level(adds_bos=True))
    templated = chat(factory).request.prompt_token_ids.tolist()
    assert templated.count(0) == 1
    assert completion(factory)[0].prompt_token_ids.tolist().count(0) == 1
    rendered = chat(factory).prompt_text
    assert completion(factory, prompt=rendered)[0].prompt_token_ids.tolist() == templated
    assert chat(factory, add_special_tokens=True).request.prompt_token_ids.tolist() == templated


def test_a_model_without_template_refuses_chats_but_completes():
    factory = make_factory(template=None)
    assert "no chat template" in refusal(chat, factory).message
    assert completion(factory)


def test_a_templates_refusal_becomes_a_400_with_its_sentence():
    factory = make_factory(template="{{ raise_exception('roles must alternate') }}")
    assert "roles must alternate" in refusal(chat, factory).message


@pytest.mark.parametrize("role", ["user", "tool"])
def test_one_text_part_equals_a_string_and_several_join_by_line_breaks(role):
    factory = make_factory()

    def text(content):
        message = {"role": role, "content": content, "tool_call_id": "c"}
        return chat(factory, [message]).prompt_text

    part = {"type": "text", "text": "a"}
    assert text([part]) == text("a")
    assert text([part, part]) == text("a\na")


@pytest.mark.parametrize("role", ["user", "assistant", "tool", "system"])
@pytest.mark.parametrize(
    "template",
    [
        "{% if m.content is string %}S{{ m.content }}{% else %}L{% endif %}",
        "{% if m['content'] is not string %}L{% else %}S{{ m['content'] }}{% endif %}",
        "{% set c = m.content %}{{ 'S' + c if c is string else 'L' }}",
        "{%- if m.content is string %}S{{ m.content }}{% else %}"
        "{% for p in m.content %}L{{ p.text }}{% endfor %}{% endif %}",
    ],
)
def test_a_template_that_asks_for_a_string_is_given_one(template, role):
    """TOK-25: the parts of a message, a tool's too, are one string."""
    factory = make_factory(template="{% for m in messages %}" + template + "{% endfor %}")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = {"role": role, "content": parts, "tool_call_id": "c"}
    assert chat(factory, [message]).prompt_text == "Sa\nb"


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
def test_parts_that_are_not_text_are_refused(kind):
    part = {"type": kind, kind: {"url": "http://127.0.0.1:1/a.png"}}
    error = refusal(chat, make_factory(), [{"role": "user", "content": [part]}])
    assert error.param == "messages"
    assert kind in error.message


def call(arguments):
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}


@pytest.mark.parametrize("content", [None, ""])
@pytest.mark.parametrize("arguments", ['{"a": 2}', {"a": 2}])
def test_tool_arguments_in_history_reach_the_template_as_a_mapping(content, arguments):
    turn = {"role": "assistant", "content": content, "tool_calls": [call(arguments)]}
    tool = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "5"}]}
    messages = [{"role": "user", "content": "x"}, turn, tool]
    assert '[assistant]({"a": 2})[tool]5' in chat(make_factory(), messages).prompt_text


def test_a_template_that_prints_strings_gets_json_text():
    template = (
        "{% for m in messages %}{% for c in m.tool_calls %}"
        "{{ 'json ' + c.function.arguments }}{% endfor %}{% endfor %}"
    )
    turn = {"role": "assistant", "tool_calls": [call('{"a": 2}')]}
    text = chat(make_factory(template=template), [turn]).prompt_text
    assert text == 'json {"a":2}'


@pytest.mark.parametrize("arguments", ['{"a":', "[1]", '"x"'])
def test_malformed_tool_arguments_are_refused(arguments):
    error = refusal(chat, make_factory(), [{"role": "assistant", "tool_calls": [call(arguments)]}])
    assert "arguments must be a JSON object" in error.message


def test_empty_tool_calls_mean_none():
    messages = [{"role": "assistant", "content": "5", "tool_calls": []}]
    assert chat(make_factory(), messages).prompt_text == "<bos>[assistant]5[assistant]"


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(("choice", "shown"), [(None, True), ("auto", True), ("none", False)])
def test_tools_are_shown_to_the_template_unless_the_choice_is_none(choice, shown):
    prepared = chat(make_factory(), tools=[TOOL], tool_choice=choice)
    assert ("TOOLS" in prepared.prompt_text) is shown


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("sometimes", "none, auto, required"),
        ("", "none, auto, required"),
        ({"type": "function", "function": {"name": "nope"}}, "'nope'"),
        ({"type": "function"}, "must name a function"),
    ],
)
def test_a_choice_that_means_nothing_is_refused(choice, message):
    error = refusal(chat, make_factory(), tools=[TOOL], tool_choice=choice)
    assert error.param == "tool_choice"
    assert message in error.message


def test_values_come_from_request_then_generation_config_then_the_api():
    config = {"temperature": 0.6, "top_k": 20, "do_sample": True, "eos_token_id": [2, 7]}
    defaults = SamplingDefaults.from_generation_config(config)
    params = completion(make_factory(defaults=defaults))[0].params
    assert (params.temperature, params.top_k, params.top_p) == (0.6, 20, 1.0)
    params = completion(make_factory(defaults=defaults), temperature=0, top_k=0)[0].params
    assert (params.temperature, params.top_k) == (0.0, 0)
    plain = completion(make_factory())[0].params
    assert (plain.temperature, plain.top_p, plain.top_k) == (1.0, 1.0, 0)


def test_a_senseless_generation_config_is_a_start_error():
    with pytest.raises(ValueError, match=r"generation_config\.json: top_p"):
        SamplingDefaults.from_generation_config({"top_p": 7})


@pytest.mark.parametrize("top_k", [-1, 0, 10_000_000, 2**40])
def test_a_top_k_that_keeps_everything_is_switched_off(top_k):
    assert completion(make_factory(), top_k=top_k)[0].params.top_k == 0


def test_user_stops_add_to_every_eos_id():
    request = completion(make_factory(), stop_token_ids=[9, 2], stop=["X"])[0]
    assert request.stop_token_ids == (1, 2, 9)
    assert request.params.stop == ("X",)
    ignoring = completion(make_factory(), ignore_eos=True, stop_token_ids=[9])[0]
    assert ignoring.stop_token_ids == (9,)


def test_min_tokens_suppresses_everything_that_could_end_the_text():
    request = completion(make_factory(), stop_token_ids=[9], min_tokens=5)[0]
    assert set(request.suppress_token_ids) == {1, 2, 9}
    assert completion(make_factory(), stop_token_ids=[9])[0].suppress_token_ids == ()


def test_eos_ids_come_from_config_tokenizer_and_turn_ends():
    files = ModelFiles(
        name="m",
        folder="/",
        config={"eos_token_id": 5},
        format="dummy",
        generation_config={"eos_token_id": [2, 7]},
    )
    assert end_token_ids(files, fakes.byte_level()) == (1, 2, 7)


def test_seeds_are_kept_and_drawn_seeds_are_reproducible():
    assert completion(make_factory(), seed=11)[0].seed == 11
    drawn = [completion(make_factory(seed=4))[0].seed for _ in range(2)]
    assert drawn[0] == drawn[1] != completion(make_factory(seed=5))[0].seed
    for seed in (2**63 - 1, -(2**63), -1):
        assert 0 <= completion(make_factory(), seed=seed, n=128)[0].seed + 127 < 2**63


def test_echoed_logprobs_ask_for_the_prompts_too():
    params = completion(make_factory(), echo=True, logprobs=2, max_tokens=0)[0].params
    assert (params.logprobs, params.prompt_logprobs) == (2, 2)
    assert completion(make_factory(), echo=True)[0].params.prompt_logprobs is None


def test_best_of_generates_more_and_ranks_by_logprob():
    params = completion(make_factory(), best_of=3, n=2)[0].params
    assert (params.n, params.logprobs) == (3, 0)


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_bad_words_are_banned_with_and_without_a_leading_blank(kind, adds_bos):
    tokenizer = getattr(fakes, kind)(adds_bos=adds_bos)
    sequences = bad_word_token_ids(tokenizer, ["York"])
    texts = {b"".join(tokenizer.bytes_of(i) for i in ids) for ids in sequences}
    assert texts == {b"York", b" York"}
    assert all(0 not in ids for ids in sequences)


def test_banning_a_pair_of_words_leaves_its_words_alone():
    tokenizer = fakes.byte_level()
    pair = set(bad_word_token_ids(tokenizer, ["hello world"]))
    assert pair
    assert not pair & set(bad_word_token_ids(tokenizer, ["world", "hello"]))


def test_offline_requests_pass_the_same_checks():
    factory = make_factory()
    prepared = factory.create("hello", SamplingParams(max_tokens=4))
    assert prepared.prompt_text == "hello"
    assert factory.create([4, 5], SamplingParams()).request.prompt_token_ids.tolist() == [4, 5]
    assert refusal(factory.create, [10**7], SamplingParams()).param == "prompt"


@pytest.mark.parametrize(
    ("schema", "fields", "least"),
    [
        (CompletionRequest, {"prompt": "a" * 500}, 500),
        (CompletionRequest, {"prompt": ["a" * 500, "b"]}, 501),
        (CompletionRequest, {"prompt": [7] * 500}, 500),
        (CompletionRequest, {"prompt": "a", "bad_words": ["b" * 500]}, 501),
        (ChatCompletionRequest, {"messages": [{"role": "user", "content": ""}] * 50}, 1024),
        (ChatCompletionRequest, {"messages": [], "tools": [TOOL]}, 1024),
        (TokenizeRequest, {"prompt": "a" * 500}, 500),
    ],
)
def test_the_cost_of_intake_counts_everything_that_takes_time(schema, fields, least):
    assert intake_chars(decode_request(schema, msgspec.json.encode(fields))) >= least


def test_a_short_request_is_cheap_enough_to_stay_on_the_event_loop():
    fields = {"messages": [{"role": "user", "content": "Name a river."}]}
    body = decode_request(ChatCompletionRequest, msgspec.json.encode(fields))
    assert intake_chars(body) < 200
