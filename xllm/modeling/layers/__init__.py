"""Building blocks of models, over the ops of ``hardware.kernels``.

Owns parameters, how checkpoint tensors land in them, and the order of ops inside a layer.
Never branches on hardware or batch shape; knows no model family.
"""
