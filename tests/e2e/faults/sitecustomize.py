"""Faults for the processes of a server; Python imports this file by itself from its path.

A request asks for a fault by its seed; everything else runs as it is. Modules are patched right
after their own import, so nothing is loaded that the process would not load.
"""

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

SAMPLER_ROW, SAMPLER_STEP, LOGITS_NAN, DETOKENIZER, INTAKE = range(990001, 990006)


class InjectedError(Exception):
    """Not an error that any code expects."""


def before(owner: Any, name: str, check: Callable[..., None]) -> None:
    """Call ``check`` with a method's arguments before each call of it."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def patch_sampler(module: ModuleType) -> None:
    def row(sampler: Any, request: Any) -> None:
        if request.sampling.seed == SAMPLER_ROW:
            raise InjectedError("sampler row")
        seeds[request.row] = request.sampling.seed

    def step(sampler: Any, logits: Any, staged: Any) -> None:
        for index, number in enumerate(staged.step.rows.tolist()):
            if seeds.get(number) == SAMPLER_STEP:
                raise InjectedError("sampler step")
            if seeds.get(number) == LOGITS_NAN:
                logits[index] = float("nan")

    seeds: dict[int, int] = {}
    before(module.Sampler, "add_request", row)
    before(module.Sampler, "sample", step)


def patch_choice(module: ModuleType) -> None:
    def push(choice: Any, token_ids: Any, *rest: Any) -> None:
        if choice._params.seed == DETOKENIZER and choice.num_tokens >= 2:
            raise InjectedError("detokenizer")

    before(module.ChoiceState, "push", push)


def patch_factory(module: ModuleType) -> None:
    def intake(factory: Any, body: Any, *rest: Any, **kwargs: Any) -> None:
        if body.seed == INTAKE:
            raise InjectedError("intake")

    before(module.RequestFactory, "from_completion", intake)


def patch_grammar_row(module: ModuleType) -> None:
    def begin(row: Any, output: Any, *rest: Any) -> None:
        if "faultyrow" in output.text:
            raise InjectedError("grammar row")
        if "faultystep" in output.text:
            faulty_rows.append(id(row))

    before(module.GrammarRow, "__init__", begin)


def patch_grammar_mask(module: ModuleType) -> None:
    def apply(mask: Any, *rest: Any) -> None:
        if any(faulty in (id(row) for row in mask._batch[2].rows) for faulty in faulty_rows):
            raise InjectedError("grammar step")

    before(module.GrammarMask, "apply", apply)


faulty_rows: list[int] = []
PATCHES = {
    "xllm.execution.sampling.grammar.row": patch_grammar_row,
    "xllm.execution.sampling.grammar.mask": patch_grammar_mask,
    "xllm.execution.sampling.sampler": patch_sampler,
    "xllm.frontend.output.choice": patch_choice,
    "xllm.frontend.intake.factory": patch_factory,
}


class Finder(importlib.abc.MetaPathFinder):
    """Finds what the usual finder finds, with a loader that patches."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in PATCHES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None and spec.loader is not None
        original = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            original(module)
            PATCHES[name](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Finder())
