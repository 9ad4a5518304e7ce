"""A server of ours or of anybody's with the OpenAI API, as the terminal commands use it."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence
from typing import Any

_CONNECT_SECONDS = 5.0


class Remote:
    """Blocking calls to one server.

    Args:
        url: scheme, host and port; a trailing ``/v1`` is understood.
        api_key: sent as a bearer token, if any.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def ready(self) -> bool:
        """Whether it takes requests now."""
        import httpx

        try:
            return httpx.get(f"{self.url}/health", timeout=_CONNECT_SECONDS).status_code == 200
        except (httpx.HTTPError, httpx.InvalidURL):
            return False

    def first_model(self) -> str:
        """Name of the first model it lists.

        Raises:
            ValueError: no server answers, or it answers something else.
        """
        import httpx

        try:
            answer = httpx.get(
                f"{self.url}/v1/models", headers=self._headers, timeout=_CONNECT_SECONDS
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ValueError(f"--url {self.url}: no server answers ({error})") from None
        if answer.status_code != 200:
            raise ValueError(f"--url {self.url}: {_error_text(answer.status_code, answer.text)}")
        return str(answer.json()["data"][0]["id"])

    def chat(self, messages: Sequence[dict[str, str]], **fields: Any) -> Generator[str, None, None]:
        """Stream the answer to a conversation; closing the iterator stops the server's work.

        Args:
            messages: OpenAI messages.
            **fields: further fields of the request, e.g. ``model``.

        Raises:
            ValueError: the server refused or failed; the message is the server's.
        """
        import httpx

        body = {"messages": list(messages), "stream": True, **fields}
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        url = f"{self.url}/v1/chat/completions"
        try:
            with httpx.stream(
                "POST", url, json=body, headers=self._headers, timeout=timeout
            ) as answer:
                if answer.status_code != 200:
                    raise ValueError(_error_text(answer.status_code, answer.read().decode()))
                yield from _texts(answer.iter_lines())
        except httpx.HTTPError as error:
            raise ValueError(f"--url {self.url}: the connection broke ({error})") from None


def _texts(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        data = line.removeprefix("data: ")
        if data == line or data == "[DONE]":
            continue
        event = json.loads(data)
        if "error" in event:
            raise ValueError(event["error"].get("message", "the server failed"))
        for choice in event.get("choices", []):
            if text := choice["delta"].get("content"):
                yield text


def _error_text(status: int, body: str) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {status}"
