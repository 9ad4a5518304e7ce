"""Catalogue of scheduling policies: one file each, found by its name.
A policy orders the phases of a step; it owns no queue, no budget and no sequence.
Public per file: ``Policy`` with ``order(waiting, running, budget)`` (see ``policies.base``)."""

from xllm.core.utils.registry import Registry

POLICIES = Registry(__name__, "scheduling policy", exclude=("base",))

__all__ = ["POLICIES"]
