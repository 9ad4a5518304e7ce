"""From a model argument to a loaded model: files, checkpoint formats, loading.

Owns model resolution and pulling (``source``, ``bundled``: no torch), checkpoint readers and the
loader. Does not own where a tensor goes: layers say that (``layers.target``).
"""
