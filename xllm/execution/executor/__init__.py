"""The model executor: one ``run(inputs)`` per step, through the runner that fits the batch.

Owns the model, its forward context and the choice of runner. Does not build inputs or sample.
Public: ``Executor``, ``ModelInputs``, ``ModelOutput``.
"""

from xllm.execution.executor.executor import Executor
from xllm.execution.executor.inputs import ModelInputs, ModelOutput

__all__ = ["Executor", "ModelInputs", "ModelOutput"]
