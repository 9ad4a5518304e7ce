"""Devices and what runs on them: platforms, kernels, memory, collectives, byte transport.

Does not own KV policy, weights policy or requests.
"""
