"""Chat templates: sandbox, refusals, what a template needs (TOK-03, 22, 25, 26, 27)."""

from __future__ import annotations

import pytest

from xllm.frontend.text.chat_template import ChatTemplate

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
USER = {"role": "user", "content": "Hi"}


def test_renders_turns_and_opens_the_assistants():
    assert ChatTemplate(CHATML).render([USER]) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    closed = ChatTemplate(CHATML).render([USER], add_generation_prompt=False)
    assert closed == "<|im_start|>user\nHi<|im_end|>\n"


def test_special_tokens_come_from_the_tokenizer():
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
    assert template.render([USER]) == "Hi"
    named = ChatTemplate("{{ bos_token }}x{{ eos_token }}", bos_token="<s>", eos_token="</s>")
    assert named.render([USER]) == "<s>x</s>"


def test_documents_are_none_and_not_undefined():
    template = ChatTemplate("{% if documents is not none %}{{ documents[0] }}{% endif %}Hi")
    assert template.render([USER]) == "Hi"


def test_the_template_for_tools_has_needs_of_its_own():
    parts = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    template = ChatTemplate(CHATML, tool_source=parts, bos_token="<s>")
    assert (template.needs.content_parts, template.with_tools.needs.content_parts) == (False, True)
    listed = "{% for t in tools %}{{ t.function.name }}{% endfor %}" + parts
    assert ChatTemplate(listed).needs.content_parts  # it fails without tools
    plain = ChatTemplate(CHATML)
    assert plain.with_tools is plain
    with pytest.raises(ValueError, match="chat template is not valid"):
        ChatTemplate(CHATML, tool_source="{% for %}")


@pytest.mark.parametrize("content", ["One, two,", "", "ends in blanks  ", "Hi"])
def test_continuing_the_final_message_ends_the_text_with_its_content(content):
    messages = [USER, {"role": "assistant", "content": content}]
    text = ChatTemplate(CHATML).render(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n" + content


def test_continuing_parts_extends_the_last_part():
    template = ChatTemplate("{% for m in messages %}{% for p in m.content %}{{ p.text }}|"
                            "{% endfor %}{% endfor %}")  # fmt: skip
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    text = template.render([{"role": "user", "content": parts}], continue_final_message=True)
    assert text == "a|b"


def test_a_template_that_drops_the_final_message_cannot_continue_it():
    template = ChatTemplate(
        "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(ValueError, match="continue_final_message cannot be honoured"):
        template.render([USER, {"role": "assistant", "content": "x"}], continue_final_message=True)


@pytest.mark.parametrize("name", ["self", "names", "max_chars", "args", "", "a b"])
def test_a_variable_may_have_any_name(name):
    text = ChatTemplate(CHATML).render([USER], variables={name: "x"}, add_generation_prompt=False)
    assert text == "<|im_start|>user\nHi<|im_end|>\n"


def test_a_refusal_carries_the_templates_own_sentence():
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ValueError, match="messages cannot be rendered: roles must alternate"):
        template.render([USER])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ ''|attr('__class__') }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__.json }}",
        "{{ cycler.__init__.__globals__.os.system('id') }}",
        "{{ messages.append(1) }}",
        "{{ (messages|attr('__class__')).__mro__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ lipsum.__globals__['os'].popen('id').read() }}",
        "{{ strftime_now.__globals__ }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ '{x.__class__.__mro__}'.format_map({'x': messages}) }}",
        "{{ (messages | map(attribute='__class__') | list)[0].__mro__ }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{% set f = ''.join %}{{ f.__self__.__class__ }}",
        "{% macro m() %}{% endmacro %}{{ m.__call__.__globals__ }}",
    ],
)
def test_templates_cannot_leave_the_sandbox(source):
    with pytest.raises(ValueError, match=r"unsafe|undefined|no attribute"):
        ChatTemplate(source).render([USER])


def test_broken_jinja_is_refused_at_load():
    with pytest.raises(ValueError, match="chat template is not valid"):
        ChatTemplate("{% for %}")


def test_a_template_that_trusts_a_shape_fails_as_a_user_error():
    with pytest.raises(ValueError, match="do not suit the chat template"):
        ChatTemplate("{{ 'a' + messages[0].content }}").render([{"role": "u", "content": None}])


def test_what_nests_too_deeply_for_a_template_is_a_user_error():
    source = "{% macro walk(x) %}{{ walk(x['items']) if x['items'] is mapping }}{% endmacro %}"
    template = ChatTemplate(source + "{{ walk(tools[0]) if tools }}")
    schema = {}
    for _ in range(1000):
        schema = {"items": schema}
    with pytest.raises(ValueError, match="tools nest too deeply for the chat template"):
        template.render([USER], tools=[schema])


def test_rendering_stops_at_the_length_limit():
    evil = "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}"
    template = ChatTemplate("{% if messages[0].role == 'evil' %}" + evil + "{% endif %}")
    with pytest.raises(ValueError, match="more than 1000 characters"):
        template.render([{"role": "evil", "content": ""}], max_chars=1000)


def test_rendering_stops_at_the_time_limit(monkeypatch):
    monkeypatch.setattr("xllm.frontend.text.chat_template.RENDER_SECONDS", 0.05)
    evil = "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}"
    with pytest.raises(ValueError, match="took more than"):
        ChatTemplate("{% if messages[0].role == 'evil' %}" + evil + "{% endif %}").render(
            [{"role": "evil", "content": ""}]
        )


def test_a_template_that_tests_for_strings_gets_strings():
    source = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}"
        "{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"
    )
    assert not ChatTemplate(source).needs.content_parts


def test_a_template_that_only_knows_parts_gets_parts():
    source = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    assert ChatTemplate(source).needs.content_parts


CALLS = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}CALL{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("expression", "string_arguments"),
    [
        ("{{ c.function.arguments | tojson }}", False),
        ("{{ '```json\\n' + c.function.arguments }}", True),
        ('{% for k, v in c.function.arguments.items() %}"{{ k }}"={{ v }}{% endfor %}', False),
        ("", False),
    ],
)
def test_tool_arguments_take_the_form_that_the_template_can_print(expression, string_arguments):
    template = ChatTemplate(CALLS.replace("CALL", expression))
    assert template.needs.string_arguments is string_arguments


def test_helpers_of_published_templates_exist():
    source = (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ {'k': '<é>'} | tojson }}{% endgeneration %}{% endfor %}"
        "{{ strftime_now('%Y') | length }}"
    )
    assert ChatTemplate(source).render([USER, USER]) == '{"k": "<é>"}4'
