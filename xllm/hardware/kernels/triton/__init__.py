"""Ops of ``hardware.kernels.ops`` as Triton kernels, one op per file.

Owns how each op runs on a CUDA device. Does not own what an op means: ``ops`` declares it and
``reference`` is its truth, which the same code meets under Triton's interpreter on a CPU.
"""
