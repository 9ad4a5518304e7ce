"""Messages to the engine process."""

from __future__ import annotations

import msgspec

from xllm.core.request.request import Request


class AddRequests(msgspec.Struct, frozen=True, tag="add"):
    """Start these requests; they were validated by the sender."""

    requests: list[Request]


class AbortRequests(msgspec.Struct, frozen=True, tag="abort"):
    """Stop these sequences. ``choices`` runs parallel to ``handles``; -1 means every choice.

    ``stopped`` tells a stop string (the answer is complete) from a cancelled request: only the
    latter counts as aborted.
    """

    handles: list[int]
    choices: list[int]
    stopped: bool = False


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A client announces itself; the engine answers with ``EngineReady`` (again, if need be)."""


class ResetPrefixCache(msgspec.Struct, frozen=True, tag="reset_prefix_cache"):
    """Forget every cached block that no sequence uses."""


class LoadAdapter(msgspec.Struct, frozen=True, tag="load_adapter"):
    """Load a LoRA adapter from a folder; answered with ``AdapterLoaded``."""

    name: str
    folder: str


class UnloadAdapter(msgspec.Struct, frozen=True, tag="unload_adapter"):
    """Take no more requests for an adapter, and forget it when the last one has ended."""

    adapter: int


class Profile(msgspec.Struct, frozen=True, tag="profile"):
    """Start or stop recording what the device does; answered with ``Profiled``."""

    start: bool


ToEngine = (
    AddRequests | AbortRequests | Hello | ResetPrefixCache | LoadAdapter | UnloadAdapter | Profile
)
