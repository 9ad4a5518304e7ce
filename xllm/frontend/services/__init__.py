"""One service per API family: ``async handle(request) -> answer or stream of chunk lists``.

Owns the asyncio side of the frontend. Knows no HTTP and no engine beyond ``EngineClient``.
"""
