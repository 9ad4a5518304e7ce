"""One lazy registry for every catalogue folder: a module's file name is its configured name."""

from __future__ import annotations

import importlib.util
import pkgutil
from types import ModuleType


class Registry:
    """Finds modules of one package by file name; imports only the one that is asked for.

    Args:
        package: dotted name of the catalogue package, e.g. ``xllm.control.scheduler.policies``.
        noun: what one entry is called in error messages, e.g. ``"scheduling policy"``.
        exclude: module names in the folder that are not entries (a base class file).
    """

    def __init__(self, package: str, noun: str, exclude: tuple[str, ...] = ()) -> None:
        self._package = package
        self._noun = noun
        self._exclude = frozenset(exclude)

    def names(self) -> list[str]:
        """Sorted names of the entries, found without importing any of them, nor their package."""
        package = importlib.util.find_spec(self._package)
        assert package is not None, self._package
        found = (m.name for m in pkgutil.iter_modules(package.submodule_search_locations))
        return sorted(n for n in found if not n.startswith("_") and n not in self._exclude)

    def __contains__(self, name: str) -> bool:
        return name in self.names()

    def load(self, name: str) -> ModuleType:
        """Import the entry ``name``.

        Raises:
            ValueError: no such entry; the message lists those that exist.
        """
        known = self.names()
        if name not in known:
            raise ValueError(f"unknown {self._noun} {name!r}; known: {', '.join(known)}")
        return importlib.import_module(f"{self._package}.{name}")
