"""Text in, text out: request schemas, chat templates, tokenizing, detokenizing, services.

Owns everything between an API body and token ids, in both directions. Knows no torch, no web
framework, no scheduler; it meets the engine only through ``services.engine_client.EngineClient``.
"""
