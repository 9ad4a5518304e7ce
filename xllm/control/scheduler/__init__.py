"""Scheduling: which rows compute which tokens in the next step, and what came of the last.
Owns queues, rows, budgets, admission and preemption; knows no tensors, devices or transport.
Public: ``Scheduler``, ``build_scheduler``; policies are files in ``policies``."""

from xllm.control.scheduler.build import build_scheduler
from xllm.control.scheduler.scheduler import Scheduler

__all__ = ["Scheduler", "build_scheduler"]
