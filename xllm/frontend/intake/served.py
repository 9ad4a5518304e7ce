"""The names that requests may put into ``model``: the model's own, and its adapters'."""

from __future__ import annotations

import dataclasses

from xllm.frontend.protocol.errors import RequestError

MAX_NAME_CHARS = 128


@dataclasses.dataclass(frozen=True, slots=True)
class Adapter:
    """A loaded LoRA adapter: the engine's number for it, and where it came from."""

    number: int
    folder: str


class ServedModels:
    """What is served under which name. Changed on the event loop's thread; any may ask.

    Args:
        name: the model's name in the API.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._adapters: dict[str, Adapter] = {}

    @property
    def adapters(self) -> dict[str, Adapter]:
        """Adapters by name, oldest first."""
        return dict(self._adapters)

    def adapter(self, asked: str | None) -> int:
        """The adapter that a request's ``model`` names; 0 is the model itself.

        Raises:
            RequestError: 404; nothing of that name is served.
        """
        if asked is None or asked == self.name:
            return 0
        found = self._adapters.get(asked)
        if found is None:
            served = ", ".join(map(repr, [self.name, *self._adapters]))
            raise RequestError(
                404,
                f"model {asked[:MAX_NAME_CHARS]!r} does not exist; served: {served[:1000]}",
                param="model",
                code="model_not_found",
            )
        return found.number

    def shown(self, asked: str | None) -> str:
        """The name that an answer to such a request bears."""
        return self.name if asked is None else asked

    def check_new(self, name: str) -> None:
        """Check a name for another adapter.

        Raises:
            RequestError: 400; it is empty, too long or taken.
        """
        if not 0 < len(name) <= MAX_NAME_CHARS:
            raise RequestError.bad_field(
                "lora_name", f"must have 1 to {MAX_NAME_CHARS} characters, got {len(name)}"
            )
        if name == self.name or name in self._adapters:
            raise RequestError.bad_field("lora_name", f"{name!r} is served already")

    def add(self, name: str, adapter: Adapter) -> None:
        """Serve a loaded adapter under a name that ``check_new`` accepted."""
        assert name != self.name and name not in self._adapters
        self._adapters[name] = adapter

    def remove(self, name: str) -> Adapter:
        """Serve an adapter no longer.

        Raises:
            RequestError: 404; there is none of that name.
        """
        if name not in self._adapters:
            raise RequestError(404, f"lora_name {name[:MAX_NAME_CHARS]!r} is not served")
        return self._adapters.pop(name)
