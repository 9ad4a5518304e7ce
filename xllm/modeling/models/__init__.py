"""Model families: ``resolve(hf_config)`` finds the module of a config's ``model_type``.

Owns module structure and checkpoint names, close to each family's community form.
Knows no runner, padding, graph or request.
"""

from xllm.modeling.models.registry import resolve

__all__ = ["resolve"]
