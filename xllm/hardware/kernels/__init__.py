"""Ops: declared in ``ops``, true in ``reference``, fast in one folder per platform.

Owns how an op runs. Does not own what a layer is: layers call ``ops`` and never branch on hardware.
"""
