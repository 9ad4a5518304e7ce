"""One file per reasoning format, found by its name: ``FORMAT`` is a ``ReasoningFormat``."""
