"""The truth of every op in plain torch, one op per file; slow and exact.

What a platform does not implement, it takes from here.
"""
