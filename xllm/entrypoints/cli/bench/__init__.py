"""``xllm bench``: the same seeded requests against the engine in this process or a server.

Owns workloads, the load generator and the result tables. Does not own the engine it measures.
Public: ``add_arguments``, ``run``.
"""

from xllm.entrypoints.cli.bench.command import add_arguments, run

__all__ = ["add_arguments", "run"]
