"""Bodies to schemas: strict types, unknown fields ignored, errors that name the field."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from xllm.frontend.protocol.errors import RequestError

T = TypeVar("T")

# Arrays and objects of one body, and texts (keys too). Decoding one costs two hundred times what
# its two characters do, and all of that on the event loop; nothing that fits a context has nearly
# as many. Numbers are cheap.
_MAX_CONTAINERS = 1 << 17
_MAX_TEXTS = 1 << 18
# A text that is not closed goes to the end of the body, and nothing is tried twice: otherwise each
# quote in it would begin another search for that end.
_OPENING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{]', re.DOTALL)

_decoders: dict[type, msgspec.json.Decoder[object]] = {}
_PATH = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)


def decode_request(schema: type[T], body: bytes) -> T:
    """Decode a JSON body.

    Numbers must have the schema's type: neither ``"3"`` nor ``1.5`` nor ``true`` passes for an
    integer, and JSON has no NaN or Infinity.

    Raises:
        RequestError: 400; malformed JSON, or a field of the wrong type (``param`` names it), or far
            too many arrays, objects and texts.
    """
    _check_counts(body)
    decoder = _decoders.get(schema)
    if decoder is None:
        decoder = _decoders[schema] = msgspec.json.Decoder(schema)
    try:
        return decoder.decode(body)  # type: ignore[return-value]
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None
    except msgspec.DecodeError as error:
        raise RequestError(
            400, f"the body is not valid JSON: {error}", code="invalid_json"
        ) from None
    except UnicodeDecodeError:
        raise RequestError(400, "the body is not valid UTF-8", code="invalid_json") from None
    except RecursionError:
        raise RequestError(400, "the body is nested too deeply", code="invalid_json") from None


def _check_counts(body: bytes) -> None:
    if body.count(b'"') - body.count(b'\\"') > 2 * _MAX_TEXTS:
        raise RequestError(400, f"the body must have at most {_MAX_TEXTS} texts, keys included")
    if body.count(b"[") + body.count(b"{") <= _MAX_CONTAINERS:
        return
    found = 0
    for match in _OPENING.finditer(body):  # those outside of texts
        found += match[0] in b"[{"
        if found > _MAX_CONTAINERS:
            raise RequestError(
                400, f"the body must have at most {_MAX_CONTAINERS} arrays and objects"
            )


def _wrong_type(message: str) -> RequestError:
    match = _PATH.match(message)
    assert match is not None  # every group may be empty
    path, what = match["path"], match["what"].replace("`", "")
    if path:
        return RequestError(400, f"{path}: {what}", param=re.split(r"[.\[]", path)[0] or None)
    missing = re.search(r"required field (\w+)", what)
    if missing:
        return RequestError(400, f"{missing[1]} is required", param=missing[1])
    return RequestError(400, f"the body must be a JSON object of the right shape: {what}")
