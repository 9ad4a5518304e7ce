"""Kills servers and engines at random moments and looks for what is left.

    python tests/e2e/kill_soak.py [--rounds 20] [--seed 0]

Each round starts a server on the tiny model, waits a random time (so the kill may hit the start, an
idle server or one under load), kills the server or the engine with SIGKILL and demands within two
seconds: no child process, no socket folder, no new file in /dev/shm; and, when the engine was the
victim of a server that still lives, /health 503 and an error for every open request.
"""

import argparse
import contextlib
import json
import random
import threading
import time

import httpx
from harness import Server, alive, kill, leftovers, tiny_model, wait

LIMIT_SECONDS = 2.0


def load(server: Server, outcomes: list[str], stop: threading.Event) -> None:
    """Stream answers until told to stop; notes how each ended."""
    while not stop.is_set():
        try:
            with server.stream(max_tokens=300) as response:
                if response.status_code != 200:
                    outcomes.append(str(response.status_code))
                    time.sleep(0.1)
                    continue
                last = [line[6:] for line in response.iter_lines() if line.startswith("data: ")][-1]
            outcomes.append("error" if last != "[DONE]" and "error" in json.loads(last) else "done")
        except httpx.TransportError:
            outcomes.append("broken")
            time.sleep(0.1)


def kill_once(rng: random.Random, victim: str, loading: bool) -> str:
    """One round; a line about what was hit."""
    before = leftovers()
    server = Server(tiny_model())
    stop, outcomes = threading.Event(), []  # type: ignore[var-annotated]
    readers = [
        threading.Thread(target=load, args=(server, outcomes, stop), daemon=True) for _ in range(4)
    ]
    try:
        if loading:
            wait(server.children, 60, lambda: server.log)
        else:
            server.wait_ready()
            for reader in readers:
                reader.start()
        time.sleep(rng.uniform(0.0, 3.0))
        children = server.children()
        ready = server.health() == 200
        if victim == "engine" and children:
            kill(children[0])
            if ready:
                wait(lambda: server.health() == 503, LIMIT_SECONDS, lambda: server.log)
                count = len(outcomes)
                wait(lambda: loading or "error" in outcomes[count - 4 :] or "503" in outcomes, 5)
        else:
            kill(server.process.pid)
            server.process.wait(LIMIT_SECONDS)
        wait(lambda: not any(alive(pid) for pid in children), LIMIT_SECONDS)
        stop.set()
        if victim == "engine":
            assert server.process.wait(20) != 0, "a server without an engine must end"
        wait(lambda: leftovers() <= before, LIMIT_SECONDS, lambda: str(leftovers() - before))
        return f"{victim} {'ready' if ready else 'loading'}: {sorted(set(outcomes))}"
    finally:
        stop.set()
        with contextlib.suppress(Exception):
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    for number in range(args.rounds):
        victim = ("server", "engine")[number % 2]
        print(number, kill_once(rng, victim, loading=number % 4 >= 2), flush=True)
    print(f"{args.rounds} kills, nothing left behind")


if __name__ == "__main__":
    main()
