"""Takes the screenshots of docs/images from a running server. Needs playwright and Chromium.

Usage: ``python tools/screenshots.py http://127.0.0.1:8000 docs/images``
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

QUESTIONS = [
    "What is a cache? Answer in two sentences.",
    "Write a short Python function that reverses a string, in a code block.",
]
DESKTOP = {"width": 1180, "height": 760}
PHONE = {"width": 390, "height": 780}
ANSWER_MS = 120_000


# Asks for answers at the same time and does not wait for them.
_LOAD = """number => {
    for (let i = 0; i < number; i++) fetch("v1/chat/completions", {
        method: "POST",
        headers: {"Content-Type": "application/json"},
        body: JSON.stringify({
            messages: [{role: "user", content: `Tell me a long story about ${i} foxes.`}],
            max_tokens: 600,
            ignore_eos: true,
        }),
    });
}"""


def main() -> int:
    """Write chat-{light,dark,phone}.png and dashboard-{light,dark}.png."""
    url, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-background-networking"],
        )
        for name, scheme, size in (
            ("light", "light", DESKTOP),
            ("dark", "dark", DESKTOP),
            ("phone", "light", PHONE),
        ):
            page = _page(browser, url, scheme, size)
            _talk(page)
            page.screenshot(path=folder / f"chat-{name}.png")
            if size is DESKTOP:
                _dashboard(page, url, folder / f"dashboard-{name}.png")
            page.context.close()
        browser.close()
    return 0


def _page(browser: Browser, url: str, scheme: str, size: dict[str, int]) -> Page:
    context = browser.new_context(
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": size["width"], "height": size["height"]},
    )
    page = context.new_page()
    page.add_init_script(
        "localStorage.setItem('xllm.settings', JSON.stringify("
        "{temperature: '0', repetition_penalty: '1.1', max_tokens: '300'}))"
    )
    page.goto(url)
    page.wait_for_selector("#model option", state="attached")
    return page


def _talk(page: Page) -> None:
    for question in QUESTIONS:
        page.fill("#prompt", question)
        page.keyboard.press("Enter")
        page.wait_for_selector("body.busy")
        page.wait_for_selector("body:not(.busy)", timeout=ANSWER_MS)


def _dashboard(page: Page, url: str, path: Path) -> None:
    other = page.context.new_page()
    other.goto(f"{url}/dashboard")
    for number in (1, 3, 6):
        page.evaluate(_LOAD, number)
        other.wait_for_timeout(12_000)
    other.screenshot(path=path)


if __name__ == "__main__":
    sys.exit(main())
