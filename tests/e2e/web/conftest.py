"""A browser and a real server for the tests of the pages."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import KEY, Server, running, tiny_model, wait

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def web_server() -> Iterator[Server]:
    with running(tiny_model()) as server:
        yield server


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with sync_api.sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any, web_server: Server) -> Iterator[Callable[..., Any]]:
    """Opens a page of the server; at the end no script may have failed or broken the policy."""
    contexts, problems = [], []

    def open_at(path: str = "/", key: str = KEY, **options: Any) -> Any:
        context = browser.new_context(base_url=f"http://127.0.0.1:{web_server.port}", **options)
        context.set_default_timeout(10_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda m: "Policy" in m.text and problems.append(m.text))
        page.on("dialog", lambda dialog: dialog.accept())
        if key:
            page.add_init_script(f"sessionStorage.setItem('xllm.key', '{key}')")
        page.add_init_script(
            "localStorage.getItem('xllm.settings') ??"
            " localStorage.setItem('xllm.settings', JSON.stringify({max_tokens: '24'}))"
        )
        page.goto(path)
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert problems == []


def until(page: Any, expression: str) -> None:
    """Wait until a JavaScript expression is true. (The page's policy forbids what playwright's own
    ``wait_for_function`` does.)"""
    wait(lambda: page.evaluate(expression), 10, lambda: expression)


def answering(page: Any, *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    """Lets the page's chat requests be answered with these deltas; the list of their bodies."""
    bodies: list[dict[str, Any]] = []
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": d}]} for d in deltas]
    chunks.append({"choices": [], "usage": {"completion_tokens": 7}})
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"

    def answer(route: Any) -> None:
        bodies.append(route.request.post_data_json)
        route.fulfill(body=events, content_type="text/event-stream")

    page.route("**/v1/chat/completions", answer)
    return bodies


def ask(page: Any, text: str) -> None:
    """Type a question, send it, wait for the end of the answer."""
    page.fill("#prompt", text)
    page.keyboard.press("Enter")
    page.wait_for_selector("#messages .assistant")
    page.wait_for_selector("body:not(.busy)")
