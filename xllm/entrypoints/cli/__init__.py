"""The command ``xllm``. Each subcommand is one module, imported when it is called.

Owns flags and what people see on a terminal. Reaches the engine through ``assembly``.
"""
