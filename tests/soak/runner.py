"""The command line of a soak: one random life after the other until the time is over."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable


def soak(description: str | None, live: Callable[[int], dict[str, int]]) -> None:
    """Run lives of ascending seeds, and print what they saw.

    Args:
        description: of the command.
        live: runs the life of a seed; what it counted.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first life")
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    seed, total = args.seed, Counter[str]()
    while time.monotonic() < end:
        try:
            total.update(live(seed))
        except BaseException:
            print(f"failed with --seed {seed}")
            raise
        seed += 1
    counts = "".join(f", {count} {name}" for name, count in total.items())
    print(f"{seed - args.seed} lives{counts}: nothing found")
