"""Seeded mutations of valid requests: of the JSON tree, of the bytes, of the HTTP around them."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

JsonPath = tuple[str | int, ...]


def _deep() -> list[Any]:
    """Nested to just below where Python's own encoder gives up."""
    value: list[Any] = []
    for _ in range(900):
        value = [value]
    return value


# What a hostile or careless client puts where something else belongs.
NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 127, 128, 1025),
    *(2**31 - 1, 2**31, 2**53 + 1, 2**63, 10**40),
    *(-0.0, 0.5, -0.5, 1e-320, 1e308, -1e308, 3.0000001, 1e400),
    *("", " ", "0", "nan", "auto", "none", "\x00", "\ud800", "é" * 50, "🙂"),
    *("a" * 4097, "x" * 70_000, "<|im_end|>", "<tool_call>", "{{ 7*7 }}", "../../etc"),
    "{% for i in range(10**9) %}x{% endfor %}",
    *("file:///etc/passwd", "http://127.0.0.1:1/", "(a{1,999}){1,999}", "\r\nX-Injected: 1"),
    *([], {}, [[]], [None], [0] * 600, ["a"] * 70, [-1], [10**9], [{}] * 40),
    *({"": ""}, {"0": 1e9}, {"-1": 1}, {"type": "json_object"}, {"role": "user"}),
    {"type": "object", "$ref": "#"},
)

METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "BREW")


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One request to send.

    ``cut_request`` and ``cut_answer`` close the connection after so many bytes of the request or
    of its answer.
    """

    method: str
    path: str
    headers: tuple[tuple[str, bytes], ...]
    body: bytes
    cut_request: int | None = None
    cut_answer: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Seed:
    """A valid request."""

    method: str
    path: str
    body: Any = None


class Mutator:
    """Makes cases; the same seed makes the same ones.

    Args:
        seeds: valid requests.
        headers: sent with each case (the key).
        seed: of the random generator.
    """

    def __init__(self, seeds: Sequence[Seed], headers: dict[str, str], seed: int) -> None:
        self._seeds = seeds
        self._headers = tuple((name, value.encode()) for name, value in headers.items())
        self._random = random.Random(seed)
        fields = {key for item in seeds for key in _keys(item.body)}
        self._fields = sorted(fields)
        self._tree_moves: tuple[Callable[[Any, JsonPath], Any], ...] = (
            *(self._replace,) * 6,
            *(self._borrow,) * 3,
            *(self._add,) * 3,
            self._drop,
            self._rename,
            self._repeat,
        )

    def case(self) -> Case:
        """The next one: a fifth stays valid, the rest has one to four mutations."""
        rng = self._random
        seed = rng.choice(self._seeds)
        body = copy.deepcopy(seed.body)
        if seed.body is not None and rng.random() < 0.75:
            for _ in range(rng.choice((1, 1, 1, 2, 4))):
                body = self._mutate_tree(body)
        data = b"" if seed.body is None else json.dumps(body).encode()
        method, path, headers = seed.method, seed.path, self._headers
        if rng.random() < 0.06:
            data = self._mutate_bytes(data)
        if rng.random() < 0.04:
            method, path, headers = self._mutate_http(method, path)
        case = Case(method, path, headers, data)
        if rng.random() < 0.02:
            return dataclasses.replace(case, cut_request=rng.randrange(1, len(data) + 60))
        if rng.random() < 0.04:
            return dataclasses.replace(case, cut_answer=rng.randrange(1, 600))
        return case

    # --- the tree ----------------------------------------------------------------------------

    def _mutate_tree(self, body: Any) -> Any:
        path = self._random.choice(list(_paths(body)))
        return self._random.choice(self._tree_moves)(body, path)

    def _nasty(self) -> Any:
        """A value of its own: later mutations may change it."""
        if self._random.random() < 0.02:
            return _deep()
        return copy.deepcopy(self._random.choice(NASTY))

    def _replace(self, body: Any, path: JsonPath) -> Any:
        return _set(body, path, self._nasty())

    def _borrow(self, body: Any, path: JsonPath) -> Any:
        """Take a value from anywhere in another valid request."""
        other = self._random.choice([seed.body for seed in self._seeds if seed.body is not None])
        value = _get(other, self._random.choice(list(_paths(other))))
        return _set(body, path, copy.deepcopy(value))

    def _add(self, body: Any, path: JsonPath) -> Any:
        if isinstance(body, dict):
            body[self._random.choice(self._fields)] = self._nasty()
        return body

    def _drop(self, body: Any, path: JsonPath) -> Any:
        if path:
            del _get(body, path[:-1])[path[-1]]
        return body

    def _rename(self, body: Any, path: JsonPath) -> Any:
        parent = _get(body, path[:-1]) if path else None
        if isinstance(parent, dict):
            parent[self._random.choice(self._fields)] = parent.pop(path[-1])
        return body

    def _repeat(self, body: Any, path: JsonPath) -> Any:
        value = _get(body, path)
        if isinstance(value, list | str) and len(value) < 1000:
            return _set(body, path, value * self._random.choice((2, 17, 130)))
        return body

    # --- the bytes and the HTTP ---------------------------------------------------------------

    def _mutate_bytes(self, data: bytes) -> bytes:
        rng = self._random
        at = rng.randrange(len(data) + 1)
        return rng.choice(
            (
                data[:at],
                data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :],
                data[:at] + b"\xff\xfe" + data[at:],
                data + data,
                b"\xef\xbb\xbf" + data,
                b"[" * rng.choice((50, 20_000)) + data,
                data.replace(b":", b":NaN,", 1),
                data.replace(b"1", b"1" * 5000, 1),
                b"",
                rng.randbytes(rng.randrange(200)),
            )
        )

    def _mutate_http(self, method: str, path: str) -> tuple[str, str, Any]:
        rng = self._random
        extra: tuple[str, bytes] = rng.choice(
            (
                ("authorization", b"Bearer wrong"),
                ("authorization", b"\xff\xfe"),
                ("content-type", b"text/plain; charset=utf-16"),
                ("content-encoding", b"gzip"),
                ("x-request-id", b"a" * 2000),
                ("x-request-id", b"\xc3\xa9\x1b[31m"),
                ("traceparent", b"00-zz-zz-zz"),
                ("accept", b"text/event-stream"),
                ("expect", b"100-continue"),
            )
        )
        headers = (*(pair for pair in self._headers if pair[0] != extra[0]), extra)
        path = rng.choice(
            (path, path, path + "/", "/" + path, path.upper(), path + "?a=%00", "/%ff")
        )
        return rng.choice((method, method, rng.choice(METHODS))), path, headers


def _paths(value: Any, here: JsonPath = ()) -> Iterator[JsonPath]:
    """Every place in a JSON value, the root first; not below what was made deep on purpose."""
    yield here
    if len(here) > 12:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _paths(item, (*here, key))
    elif isinstance(value, list):
        for index, item in enumerate(value[:8]):
            yield from _paths(item, (*here, index))


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from _keys(item)


def _get(value: Any, path: JsonPath) -> Any:
    for step in path:
        value = value[step]
    return value


def _set(body: Any, path: JsonPath, value: Any) -> Any:
    if not path:
        return value
    _get(body, path[:-1])[path[-1]] = value
    return body
