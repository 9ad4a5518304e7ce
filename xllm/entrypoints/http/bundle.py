"""The static files of the chat page and the dashboard, as finished responses."""

from __future__ import annotations

import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

_FOLDER = Path(__file__).with_name("web")
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# What a model writes is shown on these pages: no script but the bundle's own runs, text becomes
# markup through DOMPurify alone, and nothing is fetched from or sent to any other host.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # A browser asks each time and is told 304: an upgrade never mixes old files with new ones.
    "Cache-Control": "no-cache",
}


class Bundle:
    """Every servable file of the folder, read once; a request never names a path on disk."""

    def __init__(self, folder: Path = _FOLDER) -> None:
        self._files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.suffix in _MEDIA_TYPES
        }
        self._etags = {
            name: f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            for name, content in self._files.items()
        }

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def respond(self, request: Request, name: str) -> Response:
        """The file ``name``, or 304 when the client has it already.

        Raises:
            KeyError: no such file.
        """
        etag = self._etags[name]
        headers = {**_HEADERS, "ETag": etag}
        known = request.headers.get("if-none-match", "")
        if etag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(status_code=304, headers=headers)
        media_type = _MEDIA_TYPES[Path(name).suffix]
        return Response(self._files[name], headers=headers, media_type=media_type)
