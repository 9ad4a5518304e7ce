"""``xllm bench latency``: how long one batch takes, and how that splits into prefill and decode."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xllm.core.config.flags import add_flags, config_from
from xllm.entrypoints.cli.bench import options, saving

if TYPE_CHECKING:
    from xllm.entrypoints.cli.bench.workloads import BenchRequest
    from xllm.entrypoints.offline import LLM

_PERCENTILES = (10, 25, 50, 75, 90, 99)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Shape of the batch, and every option of the engine."""
    for flag, default, text in (
        ("--input-len", 32, "Tokens of each prompt."),
        ("--output-len", 128, "Tokens to generate for each."),
        ("--batch-size", 8, "Prompts in the batch."),
        ("--num-iters", 10, "Batches that are measured."),
    ):
        parser.add_argument(
            flag,
            type=options.positive_int,
            metavar="N",
            default=default,
            help=f"{text} Default: {default}.",
        )
    parser.add_argument(
        "--num-iters-warmup",
        type=options.whole_number,
        metavar="N",
        default=3,
        help="Batches before them. Default: 3.",
    )
    parser.add_argument("--disable-tqdm", action="store_true", help="No progress bar.")
    saving.add_flags(parser)
    # Each batch has tokens of its own, but the prefix cache's bookkeeping is not the question.
    add_flags(parser, options.ENGINE_TOPICS, defaults={"enable_prefix_caching": False})


def run(args: argparse.Namespace) -> int:
    """Measure."""
    config = config_from(args)
    from tqdm import tqdm

    from xllm.entrypoints.cli.bench import workloads
    from xllm.entrypoints.offline import LLM

    with LLM.from_config(config) as llm:
        if args.input_len + args.output_len > llm.max_model_len:
            raise ValueError(
                f"--input-len plus --output-len must be at most {llm.max_model_len}, "
                f"got {args.input_len + args.output_len}"
            )
        numbers = range(args.num_iters_warmup + args.num_iters)
        bar = tqdm(numbers, desc="batches", disable=args.disable_tqdm, dynamic_ncols=True)
        requests = workloads.fixed(
            args.batch_size, args.input_len, args.output_len, llm.vocab_size, 0
        )
        timed = [
            _time_batch(llm, workloads.shifted(requests, number, llm.vocab_size)) for number in bar
        ][args.num_iters_warmup :]
    found = figures(timed, args.batch_size, args.input_len, args.output_len)
    print("\n".join(table(found)))
    shape = {key: getattr(args, key) for key in ("input_len", "output_len", "batch_size")}
    saving.save(args, "latency", config.model.model, {**shape, **found})
    return 0


def figures(
    timed: Sequence[tuple[float, float]], batch_size: int, input_len: int, output_len: int
) -> dict[str, Any]:
    """What the table shows, by the key that result files use.

    Args:
        timed: per batch, seconds until every prompt had its first token, and until the last token.
    """
    import numpy as np

    first, whole = np.array(timed).T
    found: dict[str, Any] = {
        "avg_latency": float(whole.mean()),
        "latencies": whole.tolist(),
        "percentiles": {str(p): float(np.percentile(whole, p)) for p in _PERCENTILES},
        "median_ttft_ms": float(np.median(first)) * 1e3,
        "prefill_tokens_per_second": batch_size * input_len / float(np.median(first)),
    }
    if output_len > 1:
        step = float(np.median(whole - first)) / (output_len - 1)
        found["median_tpot_ms"] = step * 1e3
        found["decode_tokens_per_second"] = batch_size / step
    return found


def table(found: Mapping[str, Any]) -> list[str]:
    """The lines to print."""
    lines = [f"Avg latency: {found['avg_latency']} seconds"]
    lines += [f"{p}% percentile latency: {s} seconds" for p, s in found["percentiles"].items()]
    lines.append(
        f"Median TTFT: {found['median_ttft_ms']:.2f} ms "
        f"({found['prefill_tokens_per_second']:.1f} prompt tokens/s)"
    )
    if "median_tpot_ms" in found:
        lines.append(
            f"Median TPOT: {found['median_tpot_ms']:.2f} ms "
            f"({found['decode_tokens_per_second']:.1f} output tokens/s)"
        )
    return lines


def _time_batch(llm: LLM, requests: Sequence[BenchRequest]) -> tuple[float, float]:
    outputs = llm.generate(
        [request.prompt_token_ids for request in requests],
        [options.exact(request.max_tokens) for request in requests],
        use_tqdm=False,
    )
    metrics = [output.metrics for output in outputs]
    begin = min(m.arrival_time for m in metrics)
    first = max(m.first_token_time or begin for m in metrics)
    return first - begin, max(m.finished_time or begin for m in metrics) - begin
