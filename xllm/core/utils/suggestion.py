"""The name that was meant, for messages about one that is unknown."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Least likeness of a suggestion, as difflib has it.
_CLOSE = 0.75


def suggestion(written: str, known: Iterable[str]) -> str:
    """`` (did you mean X?)`` with the known name closest to ``written``; empty if none is close."""
    near = difflib.get_close_matches(written, known, 1, _CLOSE)
    return f" (did you mean {near[0]}?)" if near else ""
