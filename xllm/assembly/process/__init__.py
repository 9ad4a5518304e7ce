"""The engine process: how it is started, told its model, watched, ended; its client in the server.

Owns the link between the two processes. What runs in the engine is built by ``assembly.engine``.
Both ends are here: ``process_start`` and ``process_main`` run there, the rest here.
"""
