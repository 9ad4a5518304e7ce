"""The chat page in a real browser: against a real server, and against answers that a test wrote."""

import json
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
from conftest import KEY, answering, ask, until
from harness import Server, kill

pytestmark = pytest.mark.slow
Open = Callable[..., Any]
PHONE = {"width": 375, "height": 700}


def test_a_question_is_answered_with_figures_and_survives_a_reload(open_page: Open) -> None:
    page = open_page()
    until(page, "document.querySelector('#model').value === 'tiny'")
    ask(page, "Hello there")
    assert page.inner_text(".assistant > .markdown").strip()
    figures = page.inner_text(".assistant .figures")
    assert re.search(r"[\d.]+ tokens/s · first after [\d.]+ m?s · \d+ tokens", figures)
    before = page.inner_text("#messages")
    page.reload()
    page.wait_for_selector("#messages .assistant")
    assert page.inner_text("#messages") == before
    assert page.inner_text("#conversations .current") == "Hello there"


def test_escape_stops_a_stream_and_keeps_what_came(open_page: Open, web_server: Server) -> None:
    page = open_page()

    def on_and_on(route: Any) -> None:
        route.continue_(post_data=json.dumps(route.request.post_data_json | {"ignore_eos": True}))

    page.route("**/v1/chat/completions", on_and_on)
    page.evaluate("localStorage.setItem('xllm.settings', JSON.stringify({max_tokens: '480'}))")
    page.fill("#prompt", "Talk")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.assistant > .markdown')?.textContent.length > 3")
    kill(web_server.engine_pid(), signal.SIGSTOP)  # or a fast machine has said everything by now
    try:
        page.keyboard.press("Escape")
        page.wait_for_selector("body:not(.busy)")
    finally:
        kill(web_server.engine_pid(), signal.SIGCONT)
    assert "stopped" in page.inner_text(".assistant .figures")
    assert page.inner_text(".assistant > .markdown").strip()
    assert page.locator("#send").is_visible()


def test_regenerate_and_edit_replace_what_follows(open_page: Open) -> None:
    page = open_page()
    bodies = answering(page, {"role": "assistant", "content": "first"})
    ask(page, "One")
    ask(page, "Two")
    page.click(".assistant >> nth=1 >> [aria-label='Regenerate the answer']")
    until(page, "document.querySelectorAll('.assistant .figures').length === 2")
    page.wait_for_selector("body:not(.busy)")
    page.hover(".user >> nth=0")
    page.click(".user >> nth=0 >> [aria-label='Edit the message']")
    page.fill(".editor textarea", "Changed")
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('.message').length === 2")
    page.wait_for_selector("body:not(.busy)")
    asked = [[m["content"] for m in body["messages"]] for body in bodies]
    assert asked == [["One"], ["One", "first", "Two"], ["One", "first", "Two"], ["Changed"]]
    assert page.inner_text(".user .text") == "Changed"


def test_settings_travel_with_the_request_and_the_key_only_in_its_header(open_page: Open) -> None:
    page = open_page()
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    bodies = answering(page, {"content": "ok"})
    page.click("#open-settings")
    page.fill("[name=system]", "Be brief.")
    page.fill("[name=temperature]", "0.3")
    page.fill("[name=tools]", "{")
    page.click("#save-settings")
    assert "Tools" in page.inner_text("#settings-problem")
    page.fill("[name=tools]", "")
    page.click("#save-settings")
    ask(page, "Hi")
    assert bodies[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (bodies[0]["temperature"], bodies[0]["max_tokens"]) == (0.3, 24)
    assert "top_p" not in bodies[0]
    assert urls and not any(KEY in url for url in urls)


def test_without_a_key_the_page_asks_for_one_and_shows_the_error(open_page: Open) -> None:
    page = open_page(key="")
    page.wait_for_selector("#settings[open]")
    page.keyboard.press("Escape")
    ask(page, "Hi")
    assert "API key" in page.inner_text(".assistant .problem")
    page.wait_for_selector("#settings[open]")
    page.fill("[name=key]", KEY)
    page.click("#save-settings")
    page.click(".assistant [aria-label='Regenerate the answer']")
    page.wait_for_selector(".assistant .figures:not(:empty)")
    assert not page.locator(".assistant .problem").is_visible()


def test_a_bad_setting_is_shown_as_the_server_puts_it(open_page: Open) -> None:
    page = open_page()
    page.evaluate("localStorage.setItem('xllm.settings', JSON.stringify({top_p: '7'}))")
    ask(page, "Hi")
    assert "top_p" in page.inner_text(".assistant .problem")


ATTACKS = [
    "<script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "<svg onload='window.pwned = 1'></svg>",
    "[click](javascript:window.pwned=1)",
    "[click](data:text/html,<script>window.pwned=1</script>)",
    "![x](https://evil.example/leak.png)",
    '![x](x"onerror="window.pwned=1)',
    "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe>",
    "<a href='javascript:window.pwned=1'>x</a>",
    "<style>body { display: none }</style>",
    '```html"><img src=x onerror=window.pwned=1>\n</code></pre><script>pwned=1</script>\n```',
    "<form action=https://evil.example><button>x</button></form>",
    "<math><mtext><table><mglyph><style><img src=x onerror=window.pwned=1>",
]


def test_whatever_a_model_writes_runs_nothing_and_fetches_nothing(open_page: Open) -> None:
    page = open_page()
    outside: list[str] = []
    page.on("request", lambda r: "127.0.0.1" in r.url or outside.append(r.url))
    everything = "\n\n".join(ATTACKS)
    answering(page, {"reasoning_content": everything}, {"content": everything})
    ask(page, "<img src=x onerror='window.pwned = 1'>")
    for link in page.locator(".markdown a").all():
        if link.is_visible() and not (link.get_attribute("href") or "").startswith("http"):
            link.click()
    page.wait_for_timeout(200)
    assert page.evaluate("window.pwned") is None
    assert outside == []
    bad = "script, img, svg:not(.icon), iframe, style, form, math, [onerror], [onload], [style]"
    assert page.locator("#messages").locator(bad).count() == 0
    links = [a.get_attribute("href") for a in page.locator("#messages a").all()]
    assert all(href is None or href.startswith("https://evil.example/leak") for href in links)
    assert "<script>window.pwned = 1</script>" in page.inner_text(".assistant > .markdown")


def test_code_is_coloured_and_can_be_copied(open_page: Open) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    code = "def f(x):\n    return x + 1  # <b>"
    parts = [{"content": c} for c in f"Look:\n\n```python\n{code}\n```\n\n- **bold**\n"]
    answering(page, *parts)
    ask(page, "Code, please")
    assert page.inner_text(".code-block .hljs-keyword >> nth=0") == "def"
    assert page.inner_text(".markdown li strong") == "bold"
    page.click(".code-block button")
    until(page, "navigator.clipboard.readText().then(text => text !== '')")
    assert page.evaluate("navigator.clipboard.readText()") == code
    # Without the secure clipboard, as over http from another machine.
    page.evaluate("window.read = navigator.clipboard.readText.bind(navigator.clipboard)")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.click(".assistant .tools [aria-label='Copy the answer']")
    until(page, "window.read().then(text => text.startsWith('Look:'))")


def test_thinking_is_folded_and_tool_calls_are_shown(open_page: Open) -> None:
    page = open_page()
    call = {"index": 0, "id": "c", "function": {"name": "weather", "arguments": '{"city":'}}
    rest = {"index": 0, "function": {"arguments": '"Rome"}'}}
    answering(
        page,
        {"reasoning_content": "Let me "},
        {"reasoning_content": "think."},
        {"tool_calls": [call]},
        {"tool_calls": [rest]},
    )
    ask(page, "Weather?")
    assert "Thought for" in page.inner_text(".reasoning summary")
    assert not page.locator(".reasoning .inside").is_visible()
    page.click(".reasoning summary")
    assert page.inner_text(".reasoning .inside").strip() == "Let me think."
    assert page.inner_text(".tool-call summary") == "Calls weather"
    assert '"city": "Rome"' in page.inner_text(".tool-call pre")


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("generate", "it has no chat template (--chat-template gives it one)."),
        ("embed", "it turns texts into vectors. Vectors: /v1/embeddings;"),
        ("classify", "it labels texts: /v1/classify;"),
    ],
)
def test_a_model_that_cannot_chat_says_what_it_does_instead(
    open_page: Open, task: str, says: str
) -> None:
    page = open_page()
    answering(page, {"content": "ok"})
    ask(page, "Kept")
    cards = {"data": [{"id": "other", "task": task}]}
    page.route("**/v1/models", lambda route: route.fulfill(json=cards))
    page.reload()
    page.wait_for_selector("#no-chat")
    assert page.inner_text("#no-chat").startswith("other cannot chat: " + says)
    assert page.inner_text(".user .text") == "Kept"
    hidden = "#composer, .hint, #new, [aria-label^=Edit], [aria-label^=Regenerate]"
    assert page.locator(hidden).count() == 5
    assert not any(each.is_visible() for each in page.locator(hidden).all())
    page.keyboard.press("Control+k")
    assert page.inner_text("#title") == "other" and not page.locator("#welcome").is_visible()
    page.click("#no-chat a")
    page.wait_for_url("**/dashboard")


def test_keys_shift_enter_makes_a_line_and_ctrl_k_a_new_chat(open_page: Open) -> None:
    page = open_page()
    answering(page, {"content": "ok"})
    page.fill("#prompt", "a")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("b")
    page.keyboard.press("Enter")
    page.wait_for_selector(".assistant .figures:not(:empty)")
    assert page.inner_text(".user .text") == "a\nb"
    page.keyboard.press("Control+k")
    assert page.locator(".message").count() == 0
    page.click("#conversations .name")
    page.wait_for_selector(".message")
    page.hover("#conversations li")
    page.click("#conversations [aria-label^=Delete]")
    until(page, "!document.querySelector('#conversations li')")


def test_dark_follows_the_system_and_the_button(open_page: Open) -> None:
    page = open_page(color_scheme="dark")
    shade = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(shade)
    page.click("#theme")
    light = page.evaluate(shade)
    assert (dark, light) == ("rgb(22, 24, 29)", "rgb(255, 255, 255)")
    page.reload()
    assert page.evaluate(shade) == light


def test_a_phone_shows_all_of_it_without_sideways_scrolling(open_page: Open) -> None:
    page = open_page(viewport=PHONE, has_touch=True)
    answering(page, {"content": "```\n" + "x" * 400 + "\n```\n" + "y" * 300})
    ask(page, "Long lines")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert not page.locator("#sidebar").is_visible()
    page.click("#open-sidebar")
    page.wait_for_selector("#sidebar", state="visible")
    page.click("#close-sidebar")
    page.wait_for_selector("#sidebar", state="hidden")
