"""``xllm bench serve``: a running server under load."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xllm.core.config import env
from xllm.entrypoints.cli.bench import options, saving
from xllm.entrypoints.cli.remote import Remote

if TYPE_CHECKING:
    from xllm.entrypoints.cli.bench.client import Record, StreamingClient
    from xllm.entrypoints.cli.bench.workloads import BenchRequest

# Ids below this exist in every usual vocabulary.
_SAFE_VOCAB_SIZE = 32000
_HEADINGS = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the server is, what it gets, and how fast."""
    parser.add_argument(
        "--url", "--base-url", metavar="URL", default="http://127.0.0.1:8000", help="The server."
    )
    parser.add_argument("--model", metavar="NAME", help="Model; by default the first it lists.")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        default=env.api_key(),
        help="Bearer token; by default $XLLM_API_KEY.",
    )
    options.add_dataset_flags(parser)
    parser.add_argument(
        "--vocab-size",
        type=options.positive_int,
        metavar="N",
        default=_SAFE_VOCAB_SIZE,
        help=f"Prompt ids stay below it. Default: {_SAFE_VOCAB_SIZE}.",
    )
    parser.add_argument(
        "--request-rate",
        type=options.positive_float,
        metavar="R",
        default=math.inf,
        help="Requests per second, arriving at random (Poisson). Default: all at once.",
    )
    parser.add_argument(
        "--burstiness",
        type=options.positive_float,
        metavar="B",
        default=1.0,
        help="Below 1 arrivals come in bursts, above 1 evenly. Default: 1 (Poisson).",
    )
    parser.add_argument(
        "--max-concurrency",
        type=options.positive_int,
        metavar="N",
        help="Most requests that are open at once; further ones wait in the client.",
    )
    parser.add_argument(
        "--num-warmups",
        type=options.whole_number,
        metavar="N",
        default=1,
        help="Requests sent before the clock starts. Default: 1.",
    )
    options.add_report_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Measure; 1 if any request failed."""
    from xllm.entrypoints.cli.bench import workloads

    requests = workloads.load(args.dataset, args.num_prompts, args.vocab_size, args.dataset_seed)
    percentiles = options.percentiles(args.metric_percentiles)
    results = _event_loop_run(_measure_all(args, requests))
    found = [figures(records, percentiles) for records in results]
    for each in found:
        print("\n".join(table(args, each)))
    middle = options.median_run(found, "output_throughput")
    saving.save(args, "serve", args.model, {**_conditions(args), **middle, "runs": found})
    errors = [r.error for records in results for r in records if not r.ok]
    if errors:
        print(f"xllm bench serve: {len(errors)} failed, the first: {errors[0]}", file=sys.stderr)
    return 1 if errors else 0


def figures(records: Sequence[Record], percentiles: Sequence[float]) -> dict[str, Any]:
    """Everything the table shows, by the key that result files use."""
    import numpy as np

    from xllm.entrypoints.cli.bench.report import statistics

    good = [r for r in records if r.ok]
    begin = min((r.start for r in records), default=0.0)
    duration = max((r.end for r in records), default=0.0) - begin
    num_input = sum(r.num_prompt_tokens for r in good)
    num_output = sum(r.num_output_tokens for r in good)
    spans = [(r.stamps[-1] - r.stamps[0], r.num_output_tokens) for r in good]
    samples = {
        "ttft": np.array([r.stamps[0] - r.start for r in good]),
        "tpot": np.array([span / (count - 1) for span, count in spans if count > 1]),
        "itl": np.concatenate([np.diff(r.stamps) for r in good]) if good else np.zeros(0),
        "e2el": np.array([r.end - r.start for r in good]),
    }
    per_second = max(duration, 1e-9)
    found: dict[str, Any] = {
        "completed": len(good),
        "failed": len(records) - len(good),
        "duration": duration,
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(good) / per_second,
        "output_throughput": num_output / per_second,
        "total_token_throughput": (num_input + num_output) / per_second,
        "max_output_tokens_per_s": _peak_tokens(good, begin),
        "max_concurrent_requests": _peak_open(records),
    }
    for name, values in samples.items():
        found.update(statistics(name, values, percentiles))
    return found


def table(args: argparse.Namespace, found: dict[str, Any]) -> list[str]:
    """The lines of the result table."""
    from xllm.entrypoints.cli.bench.report import line, statistics_lines, title

    rows: list[tuple[str, int | float | str]] = [
        ("Successful requests", found["completed"]),
        ("Failed requests", found["failed"]),
    ]
    if args.max_concurrency is not None:
        rows.append(("Maximum request concurrency", args.max_concurrency))
    if args.request_rate != math.inf:
        rows.append(("Request rate configured (RPS)", args.request_rate))
    rows += [
        ("Benchmark duration (s)", found["duration"]),
        ("Total input tokens", found["total_input_tokens"]),
        ("Total generated tokens", found["total_output_tokens"]),
        ("Request throughput (req/s)", found["request_throughput"]),
        ("Output token throughput (tok/s)", found["output_throughput"]),
        ("Peak output token throughput (tok/s)", found["max_output_tokens_per_s"]),
        ("Peak concurrent requests", float(found["max_concurrent_requests"])),
        ("Total token throughput (tok/s)", found["total_token_throughput"]),
    ]
    lines = [title(" Serving Benchmark Result ", "="), *(line(*row) for row in rows)]
    for name, heading in _HEADINGS.items():
        block = {key: value for key, value in found.items() if key.endswith(f"_{name}_ms")}
        lines += statistics_lines(heading, name, block)
    return [*lines, title("", "=")]


def arrivals(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds after the start at which requests are sent; gamma-distributed gaps."""
    import numpy as np

    if rate == math.inf:
        return [0.0] * count
    gaps = np.random.default_rng(seed).gamma(burstiness, 1.0 / (rate * burstiness), count)
    gaps[:1] = 0.0
    times: list[float] = np.cumsum(gaps).tolist()
    return times


async def _measure_all(
    args: argparse.Namespace, requests: Sequence[BenchRequest]
) -> list[list[Record]]:
    from xllm.entrypoints.cli.bench.client import StreamingClient
    from xllm.entrypoints.cli.bench.workloads import shifted

    if args.model is None:
        args.model = await asyncio.to_thread(Remote(args.url, args.api_key).first_model)
    client = StreamingClient(args.url, args.api_key)
    try:
        await _warm_up(args, client, requests)
        return [
            await _measure(args, client, shifted(requests, run, args.vocab_size))
            for run in range(args.num_runs)
        ]
    finally:
        client.close()


async def _warm_up(
    args: argparse.Namespace, client: StreamingClient, requests: Sequence[BenchRequest]
) -> None:
    from xllm.entrypoints.cli.bench.workloads import shifted

    # Other tokens than any run's: warming must not fill the prefix cache with the prompts.
    chosen = shifted(requests[: args.num_warmups], args.num_runs, args.vocab_size)
    for request in chosen:
        record = await client.complete(_body(args.model, request), len(request.prompt_token_ids))
        if record.error is not None:
            raise ValueError(f"--url {args.url}: {record.error}")


async def _measure(
    args: argparse.Namespace, client: StreamingClient, requests: Sequence[BenchRequest]
) -> list[Record]:
    from tqdm import tqdm

    bodies = [_body(args.model, request) for request in requests]
    times = arrivals(len(requests), args.request_rate, args.burstiness, args.dataset_seed or 0)
    slots = asyncio.Semaphore(args.max_concurrency or len(requests))
    bar = tqdm(total=len(requests), disable=args.disable_tqdm, dynamic_ncols=True)
    begin = time.perf_counter()

    async def send(index: int) -> Record:
        await asyncio.sleep(begin + times[index] - time.perf_counter())
        async with slots:
            record = await client.complete(bodies[index], len(requests[index].prompt_token_ids))
        bar.update()
        return record

    with bar:
        return await asyncio.gather(*(send(index) for index in range(len(requests))))


def _body(model: str, request: BenchRequest) -> bytes:
    return json.dumps(
        {
            "model": model,
            "prompt": request.prompt_token_ids,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        separators=(",", ":"),
    ).encode()


def _peak_tokens(records: Sequence[Record], begin: float) -> float:
    """Most tokens within one second of the clock; an event counts its share of its request."""
    import numpy as np

    if not records:
        return 0.0
    stamps = np.concatenate([np.array(r.stamps) for r in records]) - begin
    weights = [np.full(len(r.stamps), r.num_output_tokens / len(r.stamps)) for r in records]
    return float(np.bincount(stamps.astype(int), np.concatenate(weights)).max())


def _peak_open(records: Sequence[Record]) -> int:
    changes = sorted([(r.start, 1) for r in records] + [(r.end, -1) for r in records])
    peak = now = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return peak


def _conditions(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "dataset": args.dataset,
        "num_prompts": args.num_prompts,
        "request_rate": "inf" if args.request_rate == math.inf else args.request_rate,
        "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency,
    }


def _event_loop_run(main: Any) -> Any:
    import uvloop

    return uvloop.run(main)
