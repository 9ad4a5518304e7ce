"""``xllm pull``: fetch a model before it is served."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from xllm.core.config.flags import make_config

if TYPE_CHECKING:
    from xllm.assembly.bundled import BundledModel
    from xllm.core.messages.server import EngineProgress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="NAME",
        help="Bundled short name or Hugging Face id; without one, the short names are listed.",
    )
    parser.add_argument(
        "--revision",
        help="Branch, tag or commit of a Hugging Face model; bundled models have none.",
    )


def run(args: argparse.Namespace) -> int:
    """Fetch, then print licence and place."""
    from xllm.assembly.bundled import bundled_models, fetch

    known = {model.name: model for model in bundled_models()}
    if args.model is None:
        for model in known.values():
            print("\n".join(description(model)))
        return 0
    config = make_config({"model": args.model, "revision": args.revision})
    bar = _Bar()
    try:
        folder = fetch(config, bar.progress)
    finally:
        bar.close()
    if args.model in known:
        print(f"{known[args.model].title}. Licence: {known[args.model].licence}")
    print(folder)
    return 0


def description(model: BundledModel) -> list[str]:
    """What a short name stands for."""
    return [
        f"{model.name:<14}{model.title}, {model.num_bytes / 1e6:.0f} MB",
        f"{'':<14}{model.licence}",
        f"{'':<14}{model.path or 'not pulled yet'}",
    ]


class _Bar:
    """A progress bar per phase; phases without a known length get none."""

    def __init__(self) -> None:
        self._phase = ""
        self._bar: Any = None

    def progress(self, message: EngineProgress) -> None:
        """Show how far the phase is."""
        from tqdm import tqdm

        if message.phase != self._phase:
            self.close()
            self._phase = message.phase
        if message.fraction < 0:
            return
        if self._bar is None:
            self._bar = tqdm(
                total=1.0, desc=message.phase, bar_format="{desc}: {percentage:3.0f}%|{bar}|"
            )
        self._bar.update(message.fraction - self._bar.n)

    def close(self) -> None:
        """End the bar that is shown."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
