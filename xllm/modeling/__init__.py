"""Models, their layers, attention backends, quantization and weight loading.

Owns tensors and their arithmetic. Knows no runner, graph, request, queue or HTTP.
Public: ``models.resolve``, ``weights.load_model``, ``weights.source.resolve_model``, ``attention``.
"""
