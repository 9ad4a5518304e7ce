"""The worker: one device, a loaded model, its KV cache and the persistent rows.

Owns start-up, the rows and the inputs of a step. Does not decide what runs.
Public: ``Worker`` and ``PoolingWorker`` (fit the scheduler side's ``WorkerPort`` by shape).
"""

from xllm.execution.worker.pooling import PoolingWorker
from xllm.execution.worker.worker import Worker

__all__ = ["PoolingWorker", "Worker"]
