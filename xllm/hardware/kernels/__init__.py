"""The ops of the engine: declared in ``ops``, defined in ``reference``, sped up per platform.

Owns numerics and speed of each op. Does not own tensors' lifetime, models or batches.
Public: ``ops``; every other module here is reached through it.
"""
