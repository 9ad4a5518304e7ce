"""The dashboard in a real browser, and the basics of accessibility of both pages."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from conftest import KEY, until

pytestmark = pytest.mark.slow
Open = Callable[..., Any]


def test_live_figures_arrive_and_polling_stops_when_hidden(
    open_page: Open, web_server: Any
) -> None:
    page = open_page("/dashboard")
    web_server.complete(max_tokens=32, ignore_eos=True)
    page.wait_for_selector("#state.up")
    row = page.locator("#latency-rows tr", has_text="Time to first token")
    until(page, "document.querySelector('.spark-line').getAttribute('d')?.length > 10")
    assert re.search(r"[\d.]+ m?s", row.inner_text())
    assert page.inner_text("#total-rows dd >> nth=0") != "0"
    assert re.search(r"\d+ MiB", page.inner_text("#cards"))
    asked: list[str] = []
    page.on("request", lambda r: asked.append(r.url))
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    page.wait_for_timeout(1500)
    assert len(asked) <= 1  # one may have been on its way
    page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_timeout(1500)
    assert any(url.endswith("/metrics") for url in asked)


def test_the_dashboard_asks_for_the_key(open_page: Open) -> None:
    page = open_page("/dashboard", key="")
    page.fill("#key", KEY)
    page.click("#key-form button")
    page.wait_for_selector("#state.up")


QUANTILES = """async () => {
    const p = await import("/web/js/prometheus.js");
    const page = p.parse([
        'x_bucket{m="a\\\\"b,c",le="1"} 5', 'x_bucket{m="a\\\\"b,c",le="2"} 15',
        'x_bucket{m="a\\\\"b,c",le="+Inf"} 20', 'x_sum{m="a\\\\"b,c"} 40', '# HELP x y',
    ].join("\\n"));
    const h = p.histogram(page, "x");
    return [p.count(h), h.sum, p.quantile(0.5, h), p.quantile(0.25, h), p.quantile(0.99, h),
            p.quantile(0.5, p.since(h, h))];
}"""


def test_quantiles_are_linear_within_their_bucket(open_page: Open) -> None:
    assert open_page("/dashboard").evaluate(QUANTILES) == [20, 40, 1.5, 1, 2, None]


# Controls without a name, pictures without a text, ids used twice, labels of nothing, faint text.
AUDIT = """() => {
    const found = [];
    const named = (e) => e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length;
    for (const e of document.querySelectorAll("button, a, input, select, textarea"))
        if (!e.closest("[hidden], [aria-hidden=true]") && !named(e)) found.push(e.outerHTML);
    for (const e of document.querySelectorAll("img:not([alt])")) found.push(e.outerHTML);
    const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
    if (new Set(ids).size !== ids.length) found.push("an id is used twice");
    for (const e of document.querySelectorAll("[aria-labelledby]"))
        if (!document.getElementById(e.getAttribute("aria-labelledby"))) found.push(e.outerHTML);
    if (!document.documentElement.lang || !document.title) found.push("no language or title");
    if (document.querySelectorAll("h1").length !== 1 || !document.querySelector("main"))
        found.push("not one h1 and one main");
    const light = (c) => {
        const [r, g, b] = c.match(/[\\d.]+/g).map((v) => {
            const x = v / 255;
            return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const background = (e) => {
        const c = getComputedStyle(e).backgroundColor;
        return c === "rgba(0, 0, 0, 0)" && e.parentElement ? background(e.parentElement) : c;
    };
    for (const e of document.querySelectorAll("h1, h2, p, kbd, small, th, td, dt, dd, label")) {
        if (!e.offsetParent || !e.textContent.trim()) continue;
        const [a, b] = [light(getComputedStyle(e).color), light(background(e))].sort();
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (contrast < 4.5) found.push(`${contrast.toFixed(2)}: ${e.outerHTML.slice(0, 80)}`);
    }
    return found;
}"""


@pytest.mark.parametrize("path", ["/", "/dashboard"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_has_a_name_and_text_has_contrast(
    open_page: Open, path: str, scheme: str
) -> None:
    page = open_page(path, color_scheme=scheme)
    until(page, "document.querySelector('#model option, .card')")
    if path == "/":
        page.click("#open-settings")
    assert page.evaluate(AUDIT) == []
