"""``xllm bench throughput``: how many tokens per second when all requests are there at once."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xllm.core.config.flags import add_flags, config_from
from xllm.entrypoints.cli.bench import options, saving

if TYPE_CHECKING:
    from xllm.entrypoints.cli.bench.workloads import BenchRequest
    from xllm.entrypoints.offline import LLM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Workload, and every option of the engine."""
    options.add_dataset_flags(parser)
    parser.add_argument("--disable-tqdm", action="store_true", help="No progress bar.")
    saving.add_flags(parser)
    add_flags(parser, options.ENGINE_TOPICS)


def run(args: argparse.Namespace) -> int:
    """Measure."""
    config = config_from(args)
    from xllm.entrypoints.cli.bench import workloads
    from xllm.entrypoints.offline import LLM

    with LLM.from_config(config) as llm:
        requests = workloads.load(args.dataset, args.num_prompts, llm.vocab_size, args.dataset_seed)
        _generate(llm, workloads.fixed(1, 16, 4, llm.vocab_size, 0), show=False)  # warm up
        runs = []
        for number in range(args.num_runs):
            tokens = workloads.shifted(requests, number, llm.vocab_size)
            runs.append(figures(tokens, _generate(llm, tokens, show=not args.disable_tqdm)))
            print("\n".join(table(runs[-1])))
    middle = options.median_run(runs, "output_tokens_per_second")
    if len(runs) > 1:
        print(f"Median of {len(runs)} runs:")
        print("\n".join(table(middle)))
    conditions = {"dataset": args.dataset, "num_requests": len(requests)}
    saving.save(args, "throughput", config.model.model, {**conditions, **middle, "runs": runs})
    return 0


def figures(requests: Sequence[BenchRequest], seconds: float) -> dict[str, Any]:
    """What the table shows, by the key that result files use."""
    num_prompt = sum(len(request.prompt_token_ids) for request in requests)
    num_output = sum(request.max_tokens for request in requests)
    return {
        "elapsed_time": seconds,
        "num_prompt_tokens": num_prompt,
        "num_output_tokens": num_output,
        "total_num_tokens": num_prompt + num_output,
        "requests_per_second": len(requests) / seconds,
        "tokens_per_second": (num_prompt + num_output) / seconds,
        "output_tokens_per_second": num_output / seconds,
    }


def table(found: Mapping[str, Any]) -> list[str]:
    """The lines to print."""
    return [
        f"Throughput: {found['requests_per_second']:.2f} requests/s, "
        f"{found['tokens_per_second']:.2f} total tokens/s, "
        f"{found['output_tokens_per_second']:.2f} output tokens/s",
        f"Total num prompt tokens:  {found['num_prompt_tokens']}",
        f"Total num output tokens:  {found['num_output_tokens']}",
    ]


def _generate(llm: LLM, requests: Sequence[BenchRequest], show: bool) -> float:
    """Seconds from handing over the requests to the last token."""
    prompts = [request.prompt_token_ids for request in requests]
    params = [options.exact(request.max_tokens) for request in requests]
    begin = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=show)
    seconds = time.perf_counter() - begin
    made = sum(len(output.outputs[0].token_ids) for output in outputs)
    wanted = sum(request.max_tokens for request in requests)
    if made != wanted:
        raise ValueError(
            f"--dataset: {made} of {wanted} tokens were generated; some requests exceed "
            f"--max-model-len {llm.max_model_len}"
        )
    return seconds
