"""One file per tool-call format, found by its name: ``FORMAT`` is a ``ToolFormat``."""
