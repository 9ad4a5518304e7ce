"""Sparse feed-forward blocks: a router and stacked experts.

Owns the experts' stacked weights and how checkpoints fill them; how they are multiplied is an op.
Exports nothing: ``config`` is read at start-up by processes without torch.
"""
