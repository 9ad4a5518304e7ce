"""Ops on the CPU: own C++ compiled on first use, oneDNN through torch, or the reference.

Owns the build and the choice between them. Does not own what an op means (``ops``).
"""
