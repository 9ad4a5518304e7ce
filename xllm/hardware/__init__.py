"""What a machine offers: platforms, kernels, memory, collectives, byte transport.

Owns devices and the ops that run on them. Does not know requests, KV policy or models.
"""
