"""The engine process's first lines: ``python -m xllm.assembly.process.process_start FD DEVICE``.

What has to come before torch: OpenMP is told how its threads wait, and the device's driver starts
while Python still imports. ``process_main`` does the rest.
"""

from __future__ import annotations

import sys
import threading

from xllm.core.config.env import let_waiting_threads_sleep
from xllm.hardware.cuda_driver import open_first_context


def main() -> int:
    """Run one engine; see ``process_main.main``."""
    let_waiting_threads_sleep()
    if sys.argv[2] != "cpu":
        threading.Thread(target=open_first_context, daemon=True).start()
    from xllm.assembly.process import process_main

    return process_main.main()


if __name__ == "__main__":
    sys.exit(main())
