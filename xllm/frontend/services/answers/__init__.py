"""Open answers: sent to the engine, read as they grow, shared by the services that shape them.

Owns the way to the engine (``EngineClient``, ``OutputDispatcher``) and what conversations have in
common. Knows no API beyond chat's fields.
"""
