"""The HTTP door: routes, SSE, errors, authorisation and the server's life.

Owns what is HTTP. Every answer's content comes from a service of ``frontend``.
"""
