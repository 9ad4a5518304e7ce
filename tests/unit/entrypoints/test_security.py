"""Deny by default: who may come in, and how much they may bring."""

import asyncio
import time
from typing import Any

import pytest
from fake_stack import FakeStack, app_of, call, client_of, error_of

from xllm.entrypoints.http.app import ROUTES
from xllm.entrypoints.http.security import PROBE_PATHS, PUBLIC_PATHS, ApiKeys

KEY = "sk-correct"


def test_every_route_but_the_public_list_needs_the_key() -> None:
    app = app_of(FakeStack(), api_key=[KEY], enable_admin=True)
    seen = set()
    for route in (r for name in ROUTES.names() for r in ROUTES.load(name).router.routes):
        path = route.path.replace("{name:path}", "m")
        for method in route.methods - {"HEAD"}:
            status = call(app, method, path, json={"prompt": "x", "messages": []}).status_code
            assert (status == 401) == (route.path not in PUBLIC_PATHS), (method, path, status)
            seen.add(route.path)
    assert seen > PUBLIC_PATHS
    assert {"/v1/chat/completions", "/metrics", "/version", "/reset_prefix_cache"} < seen


@pytest.mark.parametrize(
    "header", [None, KEY, f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "Bearer ", f"Basic {KEY}", ""]
)
def test_a_wrong_key_is_401_with_the_envelope(header: str | None) -> None:
    app = app_of(FakeStack(), api_key=[KEY, "another"])
    headers = {} if header is None else {"Authorization": header}
    response = call(app, "POST", "/v1/completions", json={"prompt": "x"}, headers=headers)
    assert response.status_code == 401
    assert error_of(response)["type"] == "authentication_error"
    assert KEY not in response.text


@pytest.mark.parametrize("key", [KEY, "another"])
def test_each_of_several_keys_opens(key: str) -> None:
    app = app_of(FakeStack(), api_key=[KEY, "another"])
    assert call(app, "POST", "/v1/completions", key, json={"prompt": "x"}).status_code == 200


@pytest.mark.parametrize("authorization", [None, "Bearer sk-of-another", "Basic eDp5"])
def test_a_key_in_the_other_header_counts_whatever_authorization_says(
    authorization: str | None,
) -> None:
    app = app_of(FakeStack(), api_key=[KEY])
    headers = {} if authorization is None else {"Authorization": authorization}
    body = {"messages": [], "max_tokens": 1}
    for key, status in ((KEY, 200), ("sk-wrong", 401), ("", 401)):
        sent = headers | {"X-Api-Key": key}
        assert call(app, "POST", "/v1/messages", json=body, headers=sent).status_code == status


def test_without_keys_everybody_may_come_in() -> None:
    assert ApiKeys([]).accepts(None)


def test_administration_is_not_there_unless_asked_for() -> None:
    stack = FakeStack()
    assert call(app_of(stack), "POST", "/reset_prefix_cache").status_code == 404
    assert call(app_of(stack, enable_admin=True), "POST", "/reset_prefix_cache").status_code == 200
    assert stack.resets == 1


@pytest.mark.parametrize("declared", [True, False])
def test_a_large_body_is_413_before_it_is_read(declared: bool) -> None:
    app = app_of(FakeStack(), max_body_bytes=100_000)
    sent = []

    async def chunks() -> Any:
        for _ in range(1000):
            sent.append(1)
            yield b" " * 50_000

    async def scenario() -> None:
        headers = {"Content-Length": str(50_000 * 1000)} if declared else {}
        async with client_of(app) as client:
            response = await client.post("/v1/completions", content=chunks(), headers=headers)
        assert response.status_code == 413
        error_of(response)

    asyncio.run(scenario())
    assert len(sent) <= 4


@pytest.mark.parametrize(
    ("codings", "status"),
    [
        (["identity"], 200),
        (["Identity "], 200),
        ([""], 200),
        (["gzip"], 415),
        (["BR"], 415),
        (["gzip, identity"], 415),
        (["identity", "deflate"], 415),
    ],
)
def test_an_encoded_body_is_415_that_names_the_header(codings: list[str], status: int) -> None:
    headers = [("Content-Encoding", coding) for coding in codings]
    for path in ("/v1/completions", "/v1/messages"):
        body = {"prompt": "x", "messages": [], "max_tokens": 1}
        response = call(app_of(FakeStack()), "POST", path, json=body, headers=headers)
        assert response.status_code == status
        if status == 415:
            assert "Content-Encoding" in response.json()["error"]["message"]
            assert response.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("pause", [0.01, 5.0])
def test_a_body_that_does_not_come_to_an_end_is_408(
    pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one that stalls nor one that trickles."""
    monkeypatch.setattr("xllm.entrypoints.http.security.BODY_TIMEOUT_SECONDS", 0.2)
    app = app_of(FakeStack(), request_timeout=0.5)

    async def chunks() -> Any:
        for _ in range(500):
            yield b" "
            await asyncio.sleep(pause)

    async def scenario() -> None:
        begin = time.monotonic()
        async with client_of(app) as client:
            response = await client.post("/v1/completions", content=chunks())
        assert response.status_code == 408
        assert response.headers["connection"] == "close"
        error_of(response)
        assert time.monotonic() - begin < 3.0

    asyncio.run(scenario())


def test_only_named_origins_may_call_from_a_browser() -> None:
    app = app_of(FakeStack(), api_key=[KEY], allowed_origins=["http://localhost:3000"])
    ask = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
    }
    for origin, allowed in (("http://localhost:3000", True), ("http://evil.example", False)):
        headers = {"Origin": origin, **ask}
        response = call(app, "OPTIONS", "/v1/chat/completions", headers=headers)
        assert (response.status_code == 200) == allowed
        assert (response.headers.get("access-control-allow-origin") == origin) == allowed
        response = call(app, "GET", "/health", headers={"Origin": origin})
        assert (response.headers.get("access-control-allow-origin") == origin) == allowed
        # How long to wait before trying again is nothing to hide.
        assert response.headers.get("access-control-expose-headers") == "Retry-After"


@pytest.mark.parametrize(
    ("site", "origin", "status"),
    [
        ("cross-site", "http://evil.example", 403),
        ("same-site", "http://127.0.0.1:3001", 403),
        ("cross-site", "null", 403),
        ("cross-site", "http://localhost:3000", 200),
        ("same-origin", "http://server", 200),
        ("none", None, 200),
        (None, None, 200),
    ],
)
def test_without_keys_pages_of_other_sites_may_not_ask(
    site: str | None, origin: str | None, status: int
) -> None:
    named = {"Sec-Fetch-Site": site, "Origin": origin, "Content-Type": "text/plain"}
    headers = {name: value for name, value in named.items() if value is not None}
    body = {"content": b'{"prompt": "x"}', "headers": headers}
    open_to = {"allowed_origins": ["http://localhost:3000"]}
    response = call(app_of(FakeStack(), **open_to), "POST", "/v1/completions", **body)
    assert response.status_code == status
    if status == 403:
        assert "--allowed-origins" in response.json()["error"]["message"]
    stack = FakeStack()
    admin = app_of(stack, enable_admin=True, **open_to)
    assert call(admin, "POST", "/reset_prefix_cache", headers=headers).status_code == status
    assert stack.resets == (status == 200)
    assert call(admin, "GET", "/v1/models", headers=headers).status_code == 200  # it cannot read it
    keyed = app_of(FakeStack(), api_key=[KEY], **open_to)
    body["headers"] = headers | {"Authorization": f"Bearer {KEY}"}
    assert call(keyed, "POST", "/v1/completions", **body).status_code == 200
    anybody = app_of(FakeStack(), allowed_origins=["*"])
    assert call(anybody, "POST", "/v1/completions", **body).status_code == 200


def test_comparing_keys_takes_the_same_time_for_near_and_far_misses() -> None:
    keys = ApiKeys(["k" * 64] * 8)

    def seconds(key: str) -> float:
        begin = time.thread_time()
        for _ in range(2000):
            keys.accepts(f"Bearer {key}")
        return time.thread_time() - begin

    near, far = "k" * 63 + "x", "x" * 64
    # By turns and in processor time: a busy machine slows both alike.
    pairs = [(seconds(near), seconds(far)) for _ in range(10)]
    ratio = min(n for n, _ in pairs) / min(f for _, f in pairs)
    assert 0.5 < ratio < 2.0


@pytest.mark.parametrize("path", sorted(PROBE_PATHS))
def test_probes_may_ask_with_head(path: str) -> None:
    response = call(app_of(FakeStack(), api_key=[KEY]), "HEAD", path)
    assert response.status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/llm/v1/models"])
def test_a_prefix_of_the_proxy_may_be_left_in_place_or_not(path: str) -> None:
    app = app_of(FakeStack(), root_path="/llm", api_key=[KEY])
    assert call(app, "GET", path, KEY).status_code == 200
    assert call(app, "GET", path).status_code == 401
    assert call(app, "GET", "/other" + path, KEY).status_code == 404
    assert call(app, "GET", path.replace("/v1/models", "/health")).status_code == 200


def test_routes_answer_the_methods_that_they_name_and_no_other() -> None:
    app = app_of(FakeStack())
    assert call(app, "HEAD", "/health").status_code == 200
    assert call(app, "GET", "/v1/models").status_code == 200
    refused = call(app, "HEAD", "/v1/models")  # a GET may have an effect
    assert refused.status_code == 405
    assert refused.headers["allow"] == "GET"
