"""What models write in each format, right and wrong, and what it means."""

from __future__ import annotations

import dataclasses
from typing import Any

TOOLS: dict[str, dict[str, Any]] = {
    "f": {},
    "ping": {"type": "object", "properties": {}},
    "find": {
        "type": "object",
        "properties": {
            "code": {"type": "string"},
            "n": {"type": "integer"},
            "flag": {"type": "boolean"},
            "x": {"type": ["number", "null"]},
            "list": {"type": "array", "items": {"type": "string"}},
        },
    },
}


@dataclasses.dataclass(frozen=True)
class Sample:
    """A text and its reading.

    ``calls`` are names with decoded arguments, or text if broken off. ``alone`` are parts of the
    text that come as one piece, between whatever is around them. ``beside`` names the format of
    the other kind (thoughts for calls, calls for thoughts) that is read from the same text.
    """

    text: str
    content: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    reasoning: str = ""
    thinking: bool | None = None
    complete: bool = True
    alone: tuple[str, ...] = ()
    ids: tuple[str, ...] | None = None
    beside: str = ""


def same(text: str) -> Sample:
    """Prose that must come back to the letter."""
    return Sample(text, content=text)


TYPED = ("find", {"code": "007", "n": 7, "flag": True})
NESTED = ("f", {"x": {"y": [1, {"z": 2}]}})
ADD = ("f", {"a": 1})
PING = ("ping", {})
FIND7 = ("find", {"n": 7})


def torn_in_section(mark: str, section: str, typed: str) -> list[Sample]:
    """Calls of a section that are no calls keep none of those beside them."""
    torn = f'<{mark}invoke name="find">\n<{mark}parameter name="code"{typed}>a\n</{mark}invoke>\n'
    ping = f'<{mark}invoke name="ping">\n</{mark}invoke>\n'
    find = (
        f'<{mark}invoke name="find">\n<{mark}parameter name="n"{typed}>7</{mark}parameter>\n'
        f"</{mark}invoke>\n"
    )
    begin, end = f"<{section}>\n", f"</{section}>"
    mention = f'<{mark}invoke name="ping">, <{mark}parameter name="n">'
    told = find.replace('"n"', '"code"').replace("7", mention)
    return [
        Sample(f"{begin}{torn}{find}{end} Done.", f"{begin}{torn} Done.", (FIND7,)),
        Sample(f"{begin}{torn}{ping}{find}{end}", f"{begin}{torn}", (PING, FIND7)),
        Sample(f"{begin}{ping}{torn}a{find}b{end}", f"{torn}ab{end}", (PING, FIND7)),
        # Sections that are closed, and such as are not: calls stand in sections only.
        same(f"{begin}{torn}{end}{find}"),
        Sample(f"{begin}{torn}{end}{begin}{find}{end}", f"{begin}{torn}{end}", (FIND7,)),
        Sample(f"{begin}{torn}{begin}{find}{end}{ping}", f"{begin}{torn}{ping}", (FIND7,)),
        # Not a call before its first value: part of the value.
        Sample(f"{begin}{told}{end}", "", (("find", {"code": mention}),)),
    ]


BIG = "é\\n{[" * 40
HUGE = "x{]\\u00e9 " * 2000  # 20 kB

HERMES = [
    Sample(
        '<tool_call>\n{"name":"look","arguments":{"id":42}}\n</tool_call>',
        "",
        (("look", {"id": 42}),),
        alone=("}}\n</tool_call>",),
    ),
    Sample(
        'Sure. <tool_call>{"name": "f", "arguments": {"cmd": "mkdir -p t/{a1,b2"}}</tool_call>\n'
        '<tool_call>\n{"name": "f", "arguments": {"nums":[{"v":1},{"v":2}]}}\n</tool_call>',
        "Sure. ",
        (("f", {"cmd": "mkdir -p t/{a1,b2"}), ("f", {"nums": [{"v": 1}, {"v": 2}]})),
        alone=('[{"', "},{", "}]}}\n</tool_call>", "/{"),
    ),
    Sample(
        '<tool_call>\n{"name":"f","arguments":{"a":1}}\n{"name":"ping","arguments":{}}\n</tool_call>',
        "",
        (ADD, PING),
    ),
    Sample(
        '<tool_call>{"name":"f","arguments":{"t":"a\\"}{b</tool_call>"}}} </tool_call>.',
        ".",
        (("f", {"t": 'a"}{b</tool_call>'}),),
    ),
    Sample('<tool_call>{"name":"f","arguments":{"a":1}}}} or so', "}} or so", (ADD,)),
    Sample('<tool_call>{"name":"ping"}</tool_call>', "", (PING,)),
    Sample('<tool_call>{"name":"ping","arguments":null}</tool_call>', "", (PING,)),
    Sample('<tool_call>{"arguments":{"a":1},"name":"f"}</tool_call>', "", (ADD,)),
    Sample('<tool_call>{"name":"f","arguments":"{\\"a\\":1}"}</tool_call>', "", (ADD,)),
    Sample('<tool_call>{"name":"f","arguments":{"a":1}</tool_call>', "", (ADD,)),
    Sample('<tool_call>{"name":"f","arguments":{"a":1}}\nDone', "Done", (ADD,)),
    Sample('a<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>\nb', "a\nb", (ADD,)),
    Sample(
        '<tool_call>{"name":"f","arguments":{"a":"x\ny"}}</tool_call>', "", (("f", {"a": "x\ny"}),)
    ),
    Sample('<tool_call>{"name":"f","arguments":{"a":[1', "", (("f", '{"a":[1'),), complete=False),
    Sample(
        '<tool_call>{"name":"f","arguments":{"a":12x!', "12x!", (("f", '{"a":'),), complete=False
    ),
    Sample(
        'Use <tool_call> so: <tool_call>{"name":"f","arguments":{"a":1}}</tool_call>',
        "Use <tool_call> so: ",
        (ADD,),
    ),
    same("The tag <tool_call> opens, </tool_call> closes. <tool_"),
    same('<tool_call>{"name": 3}</tool_call>'),
    same('<tool_call>{"name":"f","arguments":[1]}</tool_call>'),
    same('<tool_call>{"name":"f","argu'),
    same("  two blanks, then words \n"),
    same(" \n"),
]
CODER = [
    Sample(
        "<tool_call>\n<function=find>\n<parameter=code>\n007\n</parameter>\n<parameter=n>\n7\n"
        "</parameter>\n<parameter=flag>\nTrue\n</parameter>\n</function>\n</tool_call>",
        "",
        (TYPED,),
    ),
    Sample(
        "x<tool_call>\n<function=find>\n<parameter=code>\nif a < b:\n    </p>\n\n</parameter>\n"
        "</function>\n</tool_call>",
        "x",
        (("find", {"code": "if a < b:\n    </p>\n"}),),
    ),
    Sample("<tool_call><function=ping></function></tool_call>", "", (PING,)),
    Sample("Go.\n<function=find>\n<parameter=n>\n7\n</parameter>\n</function>", "Go.\n", (FIND7,)),
    Sample(
        "<tool_call><function=ping></function>\n<function=find>\n<parameter=n>\n7\n</parameter>\n"
        "</function>\n</tool_call>\nThen <tool_call>\n<function=find>\n<parameter=n>\n7\n",
        "\nThen <tool_call>\n<function=find>\n<parameter=n>\n7\n",
        (PING, FIND7),
    ),
    same("<tool_call>\n<function=find>\n<parameter=n>\n7\n"),
    # The parameter of the first call is never closed: the closing tag is the second call's.
    Sample(
        "<tool_call>\n<function=find>\n<parameter=code>\na\n</function>\n</tool_call>\n<tool_call>\n"
        "<function=find>\n<parameter=n>\n7\n</parameter>\n</function>\n</tool_call> Done.",
        "<tool_call>\n<function=find>\n<parameter=code>\na\n</function>\n</tool_call>\n Done.",
        (FIND7,),
    ),
    Sample(
        "<function=f><parameter=a><tool_call><function=ping></function></tool_call>"
        "<function=find><parameter=n>7</parameter></function>",
        "<function=f><parameter=a>",
        (PING, FIND7),
    ),
    # Not a call before its first value: part of the value.
    Sample(
        "<tool_call><function=find><parameter=code>see <function=ping>, <parameter=n></parameter>"
        "</function></tool_call>",
        "",
        (("find", {"code": "see <function=ping>, <parameter=n>"}),),
    ),
    same("<tool_call> <function find> </tool_call>"),
]
LLAMA = [
    Sample(
        '<|python_tag|>{"name":"search","parameters":{"f":{"a":{"b":1}}}}',
        "",
        (("search", {"f": {"a": {"b": 1}}}),),
    ),
    Sample('{"name":"f","parameters":{"a":1}}; {"name":"ping","arguments":{}}', "", (ADD, PING)),
    Sample('{"name": "f", "parameters": {"a": 1}}', "", (ADD,)),
    Sample('{"name":"f","parameters":{"a":1}}\n{"name":"ping","parameters":{}}', "", (ADD, PING)),
    Sample(
        '<|python_tag|>{"name":"f","parameters":{"a":1}};<|python_tag|>{"name":"ping","parameters":{}}',
        "",
        (ADD, PING),
    ),
    Sample('{"name":"f","parameters":{"a":1}} {"name":"Bob"}', ' {"name":"Bob"}', (ADD,)),
    same('{"name": "Bob", "age": 3}'),
    same('{"name": "f"}'),
    same("[1, 2, 3] are numbers"),
    same("<|python_tag|>print(1)"),
]
PYTHONIC = [
    Sample(
        '[find(q=[\'a, b\', "c)]"], o={"k": [1, 2]}), ping()]',
        "",
        (("find", {"q": ["a, b", "c)]"], "o": {"k": [1, 2]}}), PING),
    ),
    Sample(
        "[f(a=-1.5, b=None, c=True, d='it\\'s \\u00e9\\n', e=(1,), g={})]",
        "",
        (("f", {"a": -1.5, "b": None, "c": True, "d": "it's é\n", "e": [1], "g": {}}),),
    ),
    Sample(
        "[find(n=0x10, x=1_000, code='a'\n  \"b\" '''c''')]",
        "",
        (("find", {"n": 16, "x": 1000, "code": "abc"}),),
    ),
    same('[find(q=[\'a, b\', "c)]"], o={"k": [1, 2]}), ping()'),
    same("[f(a=1), ping()"),
    same("[f(a=1"),
    same("[see(x)] for more"),
    same("[1] says so"),
]
MISTRAL = [
    Sample('[TOOL_CALLS][{"name":"f","arguments":{"x":{"y":[1,{"z":2}]}}}]', "", (NESTED,)),
    Sample(
        '[TOOL_CALLS] [{"name":"f","arguments":{"a":1}},{"name":"ping","arguments":{}}]',
        "",
        (ADD, PING),
    ),
    Sample(
        '[TOOL_CALLS]get[ARGS]{"c":"Oslo"}[TOOL_CALLS]get[ARGS]{"c":"Bonn"}',
        "",
        (("get", {"c": "Oslo"}), ("get", {"c": "Bonn"})),
        alone=("[ARGS]",),
    ),
    Sample('Hm. [TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{"a":1}', "Hm. ", (ADD,), ids=("a1b2c3d4e",)),
    Sample('[TOOL_CALLS]f{"a":1}', "", (ADD,)),
    same("Write [TOOL_CALLS] before a call, [ARGS] after."),
]
DS_OPEN, DS_CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
DS_BEGIN, DS_SEP, DS_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
DEEPSEEK = [
    Sample(
        f'{DS_OPEN}{DS_BEGIN}function{DS_SEP}w\n```json\n{{"city":"Lima"}}\n```{DS_END}\n'
        f"{DS_BEGIN}function{DS_SEP}ping\n```json\n{{}}\n```{DS_END}{DS_CLOSE}",
        "",
        (("w", {"city": "Lima"}), PING),
    ),
    Sample(
        f'{DS_OPEN}{DS_BEGIN}function{DS_SEP}w\n```json\n{{"q":"```"}}```{DS_END}'
        f"{DS_BEGIN}function{DS_SEP}ping\n```json\n\n```{DS_END}{DS_CLOSE}.",
        ".",
        (("w", {"q": "```"}), PING),
    ),
    same(f"The marks {DS_OPEN} and {DS_BEGIN} and {DS_END} are special."),
    same(f"{DS_OPEN}{DS_BEGIN}function{DS_SEP}w\n```"),
]
DEEPSEEK_31 = [
    Sample(
        f'Ok.{DS_OPEN}{DS_BEGIN}f{DS_SEP}{{"a":1}}{DS_END}{DS_BEGIN}ping{DS_SEP}{{}}{DS_END}{DS_CLOSE}',
        "Ok.",
        (ADD, PING),
    ),
    Sample(f'{DS_OPEN}{DS_BEGIN}f{DS_SEP}{{"a":1', "", (("f", '{"a":1'),), complete=False),
    same(f"{DS_OPEN}{DS_CLOSE}"),
]
DSML = [
    Sample(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="find">\n<｜DSML｜parameter name="code" '
        'string="true">007</｜DSML｜parameter>\n<｜DSML｜parameter name="n" string="false">7'
        '</｜DSML｜parameter>\n<｜DSML｜parameter name="flag" string="false">true'
        '</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="ping">\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "",
        (TYPED, PING),
    ),
    same('<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'),
    *torn_in_section("｜DSML｜", "｜DSML｜function_calls", ' string="false"'),
]
GLM = [
    Sample(
        "Let me.\n<tool_call>find\n<arg_key>code</arg_key>\n<arg_value>007</arg_value>\n"
        "<arg_key>n</arg_key>\n<arg_value>7</arg_value>\n<arg_key>flag</arg_key>\n"
        "<arg_value>true</arg_value>\n</tool_call>\n<tool_call>ping\n</tool_call>",
        "Let me.\n",
        (TYPED, PING),
    ),
    Sample(
        '<tool_call>find<arg_key>list</arg_key><arg_value>["a"]</arg_value><arg_key>x</arg_key>'
        "<arg_value>null</arg_value></tool_call>",
        "",
        (("find", {"list": ["a"], "x": None}),),
    ),
    Sample("<tool_call>ping</tool_call>", "", (PING,)),
    same("<tool_call>find\n<arg_key>n</arg_key>\n<arg_value>7"),
    same("A <tool_call> is not a call."),
    Sample(
        "<tool_call>find<arg_key>code</arg_key><arg_value>a</tool_call>\n"
        "<tool_call>find\n<arg_key>n</arg_key>\n<arg_value>7</arg_value>\n</tool_call>",
        "<tool_call>find<arg_key>code</arg_key><arg_value>a</tool_call>\n",
        (FIND7,),
    ),
]
KIMI_CALL = (
    "<|tool_call_begin|>functions.get_w:0{nl}<|tool_call_argument_begin|>{args}<|tool_call_end|>"
)
KIMI = [
    Sample(
        "Hi<|tool_calls_section_begin|>"
        + KIMI_CALL.format(nl="\n", args='{"a": 1}')
        + KIMI_CALL.format(nl="", args="{}").replace(":0", ":1")
        + "<|tool_calls_section_end|>",
        "Hi",
        (("get_w", {"a": 1}), ("get_w", {})),
        alone=("<|tool_call_end|><|tool_call_begin|>", "functions.get_w:0\n"),
        ids=("functions.get_w:0", "functions.get_w:1"),
    ),
    Sample(
        "<think>Hm<|tool_call_section_begin|>"
        + KIMI_CALL.format(nl="\n", args='{"a": 1}')
        + "<|tool_call_section_end|>ok",
        "ok",
        (("get_w", {"a": 1}),),
        "Hm",
        ids=("functions.get_w:0",),
        beside="kimi_k2",
    ),
    Sample(
        "<|tool_call_section_begin|>"
        + KIMI_CALL.format(nl="", args='{"a": "' + BIG + '"}')
        + "<|tool_call_section_end|>",
        "",
        (("get_w", {"a": BIG.replace("\\n", "\n")}),),
    ),
    Sample(
        "<|tool_calls_section_begin|>"
        + KIMI_CALL.format(nl="\n", args='{"a": "' + HUGE + '"}')
        + KIMI_CALL.format(nl="", args="{}").replace("get_w:0", "ns.get-w:11")
        + "<|tool_calls_section_end|>",
        "",
        (("get_w", {"a": HUGE.replace("\\u00e9", "é")}), ("ns.get-w", {})),
        ids=("functions.get_w:0", "functions.ns.get-w:11"),
        alone=("<|tool_call_end|><|tool_call_begin|>",),
    ),
    same("Kimi writes <|tool_calls_section_begin|> first, <|tool_call_end|> last."),
]
GRANITE = [
    Sample(
        '<|tool_call|>[{"name":"f","arguments":{"a":1}},{"name":"ping","arguments":{}}]',
        "",
        (ADD, PING),
    ),
    Sample('<tool_call>[{"name": "f", "arguments": {"a": 1}}]', "", (ADD,)),
    Sample('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "", (ADD,)),
    same("<|tool_call|>[]"),
]
PHI = [
    Sample('functools[{"name":"f","arguments":{"a":1}}]', "", (ADD,)),
    Sample('<|tool_call|>[{"name":"f","arguments":{"a":1}}]<|/tool_call|>', "", (ADD,)),
    same("import functools\nfunctools.reduce(add, [1])"),
]
GEMMA = [
    Sample(
        "<start_function_call>call:find{code:<escape>a, {b}<escape>,n:7,flag:true,"
        "o:{k:[1,<escape>z<escape>]},x:null}<end_function_call>",
        "",
        (("find", {"code": "a, {b}", "n": 7, "flag": True, "o": {"k": [1, "z"]}, "x": None}),),
    ),
    Sample(
        "<start_function_call>call:ping{}<end_function_call>"
        "<start_function_call>call:f{a:1}<end_function_call>",
        "",
        (PING, ADD),
    ),
    same("<start_function_call>call:f{a:<escape>x"),
    same("<start_function_call> is a mark"),
]
MINIMAX = [
    Sample(
        '<minimax:tool_call>\n<invoke name="find">\n<parameter name="code">007</parameter>\n'
        '<parameter name="n">7</parameter>\n<parameter name="flag">true</parameter>\n</invoke>\n'
        '<invoke name="ping">\n</invoke>\n</minimax:tool_call>',
        "",
        (TYPED, PING),
    ),
    same('<minimax:tool_call>\n<invoke name="f">'),
    *torn_in_section("", "minimax:tool_call", ""),
]
HARMONY = [
    Sample(
        "<|channel|>analysis<|message|>Need it.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.web-browsing <|constrain|>json<|message|>{"a": 1}<|call|>',
        "",
        (("web-browsing", {"a": 1}),),
        "Need it.",
    ),
    Sample(
        "<|channel|>analysis<|message|>Why<|end|><|start|>assistant to=functions.f<|channel|>"
        'commentary json<|message|>{"a":1}',
        "",
        (ADD,),
        "Why",
    ),
    Sample(
        "<|channel|>analysis<|message|>2+2<|end|><|start|>assistant<|channel|>final"
        "<|message|>4 <b>",
        "4 <b>",
        (),
        "2+2",
    ),
    Sample("<|channel|>junk words<|message|>hello<|return|>", "hello"),
    # The prompt has written the start of the first header.
    Sample(' to=functions.f<|channel|>commentary json<|message|>{"a":1}<|call|>', "", (ADD,)),
    Sample(
        '<|channel|>commentary one two to=functions.f three json<|message|>{"a":1}<|end|>'
        "<|start|>assistant<|channel|>comm",
        "",
        (ADD,),
    ),
    Sample('<|channel|>commentary to=f<|message|>{"a":1}<|call|>', "", (ADD,)),
    Sample("<|channel|>commentary to=who<|message|>hello<|end|>", "hello"),
    same("to=functions.f is how a message says so"),
    Sample("<|channel|>commentary to=functions.ping <|message|><|call|>", "", (PING,)),
    Sample(
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b",
        "",
        (),
        "a\nb",
    ),
    Sample(
        '<|channel|>commentary to=functions.f<|message|>{"a":[',
        "",
        (("f", '{"a":['),),
        complete=False,
    ),
    same("No header at all"),
    same("<|channel|>final"),
]

TOOL_SAMPLES: dict[str, list[Sample]] = {
    "hermes": HERMES,
    "qwen3_coder": CODER,
    "llama3_json": LLAMA,
    "pythonic": PYTHONIC,
    "llama4_pythonic": [
        *PYTHONIC,
        Sample("<|python_start|>[f(a=1)]<|python_end|>", "", (ADD,)),
        Sample("So: <|python_start|>[ping()]<|python_end|>", "So: ", (PING,)),
        same("<|python_start|>print(1)"),
    ],
    "mistral": MISTRAL,
    "deepseek_v3": DEEPSEEK,
    "deepseek_v31": DEEPSEEK_31,
    "deepseek_v32": DSML,
    "glm45": GLM,
    "glm47": GLM,
    "kimi_k2": KIMI,
    "gpt_oss": HARMONY,
    "granite": GRANITE,
    "phi4": PHI,
    "functiongemma": GEMMA,
    "minimax_m2": MINIMAX,
}

TAGGED = [
    Sample("<think>\nHm, </thin\n</think>\n\nYes. ", "Yes. ", (), "Hm, </thin"),
    Sample("2+2 is 4</think>The answer is 4", "The answer is 4", (), "2+2 is 4", thinking=True),
    Sample("<think>So</think>ok", "ok", (), "So", thinking=True),
    Sample("<think></think>ok", "ok"),
    Sample("never closed", "", (), "never closed", thinking=True),
    Sample("No tags, <think> or </think>", "No tags, <think> or </think>", thinking=False),
]
UNSAID = [same("Prose that names <think> and </think>.")]
IMPLIED = [Sample("2+2 is 4\n</think>\n4", "4", (), "2+2 is 4")]
REASONING_SAMPLES: dict[str, list[Sample]] = {
    "deepseek_r1": TAGGED + IMPLIED,
    "deepseek_v3": TAGGED + UNSAID,
    "qwen3": TAGGED + UNSAID,
    "glm45": TAGGED + UNSAID,
    "kimi_k2": TAGGED + UNSAID,
    "step3": TAGGED + IMPLIED,
    "minimax_m2": TAGGED + IMPLIED,
    "granite": [
        *UNSAID,
        Sample("Here is my thought process: a b\nHere is my response: c d", "c d", (), "a b"),
        Sample("<think>a</think><response>b < c</response>", "b < c", (), "a"),
    ],
    "mistral": [
        Sample("[THINK]Hm [/THIN[/THINK]Yes", "Yes", (), "Hm [/THIN"),
        same("Prose that names [THINK] and [/THINK]."),
    ],
    "gpt_oss": [s for s in HARMONY if not s.calls],
}
