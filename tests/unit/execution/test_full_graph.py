"""Steps through graphs: buckets, padding, capture order, and the same tokens as eager steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from tests.contract.equivalence.test_grammars import GRAMMARS, new_cache
from tests.contract.equivalence.tiny_engine import VOCAB_SIZE, TinyEngine, request, write_checkpoint
from tests.fakes.graphs import FakeGraph, FakeGraphs
from tests.unit.execution.test_rows import int32
from tests.unit.execution.test_worker import make_worker, row, start_plan
from xllm.control.scheduler import sharing
from xllm.core.messages.worker import AppendedBlocks
from xllm.core.request.request import Request
from xllm.execution.executor.runners import mixed_graph
from xllm.execution.executor.runners.full_graph import DecodeOutput, buckets
from xllm.execution.executor.runners.mixed_graph import MixedOutput, token_buckets
from xllm.execution.worker import prefix_rows
from xllm.execution.worker.rows import Rows
from xllm.hardware.graphs import CaptureError
from xllm.hardware.kernels import ops
from xllm.hardware.kernels.binding import OP_FILES
from xllm.hardware.platforms import cpu
from xllm.modeling.attention import GraphSupport
from xllm.modeling.attention import torch as torch_backend
from xllm.modeling.models.decoder import CausalLM

MAX_ROWS = 6


def test_buckets_are_few_and_end_at_the_largest_batch() -> None:
    assert buckets(1) == [1]
    assert buckets(6) == [1, 2, 4, 6]
    assert buckets(256) == [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256]
    assert len(buckets(1024)) == 21


def test_token_buckets_reach_the_largest_step() -> None:
    assert token_buckets(10) == [10]
    assert token_buckets(100) == [16, 24, 32, 48, 64, 96, 100]
    assert token_buckets(500)[-5:] == [256, 320, 384, 448, 500]
    assert token_buckets(1100)[-8:] == [640, 704, 768, 832, 896, 960, 1024, 1100]
    assert [s for s in token_buckets(8192) if s > 1900] == [
        1920, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192,
    ]  # fmt: skip
    assert len(token_buckets(8192)) == 38


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> FakeGraphs:
    """The CPU as a device with graphs."""
    fake = FakeGraphs()
    monkeypatch.setattr(cpu.Platform, "graphs", fake)
    monkeypatch.setattr(torch_backend.Backend, "graph_support", GraphSupport.ALWAYS)
    return fake


def _requests(**params: float) -> list[Request]:
    rng = np.random.default_rng(1)
    return [
        request(
            handle, rng.integers(0, VOCAB_SIZE, 5 + 9 * handle).tolist(), 6, seed=handle, **params
        )
        for handle in range(5)
    ]


def _eager(files, requests: list[Request], monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as context:
        context.setattr(cpu.Platform, "graphs", None)
        return TinyEngine(files, max_rows=MAX_ROWS).run(requests)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 0.9},
        {"temperature": 0.9, "top_k": 5, "frequency_penalty": 0.5},
    ],
    ids=["greedy", "drawn in the graph", "sampled after the graph"],
)
def test_graph_steps_give_the_tokens_of_eager_steps(
    family: str, overlap: bool, params: dict, tmp_path: Path, graphs: FakeGraphs, monkeypatch
) -> None:
    files = write_checkpoint(tmp_path, family)
    requests = _requests(**params)
    expected = _eager(files, requests, monkeypatch)
    engine = TinyEngine(files, max_rows=MAX_ROWS, overlap=overlap, step_tokens=48)
    assert engine.run(requests) == expected
    assert sum(graph.num_replays for graph in graphs.of(DecodeOutput)) >= 4
    assert sum(graph.num_replays for graph in graphs.of(MixedOutput)) >= 3
    ran = engine.worker.stats()
    assert ran.decode_graph_steps == sum(g.num_replays for g in graphs.of(DecodeOutput))
    assert ran.mixed_graph_steps == sum(g.num_replays for g in graphs.of(MixedOutput))
    assert ran.eager_steps == 0, "every step of this engine has a graph"


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_blocks_of_decode_steps_come_with_their_one_copy(
    family: str, tmp_path: Path, graphs: FakeGraphs, monkeypatch
) -> None:
    """Both kinds of cache groups grow by a block within twenty tokens, and no step but that of
    the prompts writes to a block table apart."""
    engine = TinyEngine(write_checkpoint(tmp_path, family), max_rows=MAX_ROWS)
    steps, append_blocks = [], Rows.append_blocks

    def note(rows: Rows, group: int, appended: AppendedBlocks) -> None:
        steps.append(engine.worker.stats().decode_graph_steps)
        append_blocks(rows, group, appended)

    monkeypatch.setattr(Rows, "append_blocks", note)
    engine.run([request(i, [7 + i] * (3 + 9 * i), 20) for i in range(3)])
    assert engine.worker.stats().decode_graph_steps == 19
    assert set(steps) == {0}


def test_a_resumed_row_in_a_decode_step_gets_all_of_its_blocks(graphs: FakeGraphs) -> None:
    """Its other tokens were found in the prefix cache."""
    worker = make_worker()
    worker.start()
    plan = start_plan([[5, 6]], [row()])
    assert plan.new_rows is not None
    resumed = msgspec.structs.replace(plan.new_rows, prompt_lens=int32(1))
    worker.execute(
        msgspec.structs.replace(
            plan, num_scheduled=int32(1), num_computed=int32(1), new_rows=resumed
        )
    ).result()
    assert worker.stats().decode_graph_steps == 1
    assert worker._started is not None
    assert worker._started.rows.block_tables[0][0, :8].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
def test_constrained_rows_replay_graphs(
    overlap: bool, tmp_path: Path, graphs: FakeGraphs, monkeypatch
) -> None:
    """The masks are applied to the graph's logits, so a grammar costs no eager step."""
    files = write_checkpoint(tmp_path, "llama")
    requests = [
        request(i, [7 + i] * (3 + 9 * i), 8, seed=i, grammar=GRAMMARS[name] if name else None)
        for i, name in enumerate(["regex", None, "schema", None, "choice"])
    ]
    with monkeypatch.context() as context:
        context.setattr(cpu.Platform, "graphs", None)
        expected = TinyEngine(files, max_rows=MAX_ROWS, grammars=new_cache()).run(requests)
    assert len(expected[0, 0]) == 8 and set(expected[0, 0]) <= set(b"0123456789-")
    engine = TinyEngine(
        files, max_rows=MAX_ROWS, overlap=overlap, step_tokens=48, grammars=new_cache()
    )
    assert engine.run(requests) == expected
    ran = engine.worker.stats()
    assert ran.decode_graph_steps >= 6
    assert ran.eager_steps == 0


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_moe"])
def test_what_a_graph_launches_was_launched_before(
    family: str, tmp_path: Path, monkeypatch
) -> None:
    """A capture must not compile or load: its rehearsal, through fewer layers, did."""
    files = write_checkpoint(tmp_path, family)
    launched: set[tuple] = set()
    unrehearsed: list[set[tuple]] = []

    def note(name: str, op: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            shapes = (tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in args)
            launched.add((name, *(s for s in shapes if isinstance(s, tuple | int | float))))
            return op(*args, **kwargs)

        return noted

    class Graphs(FakeGraphs):
        def capture(self, work: Callable[[], Any]) -> FakeGraph:
            before = set(launched)
            captured = super().capture(work)
            unrehearsed.append(launched - before)
            return captured

    monkeypatch.setattr(cpu.Platform, "graphs", Graphs())
    monkeypatch.setattr(torch_backend.Backend, "graph_support", GraphSupport.ALWAYS)
    ops.use_platform("reference")
    ops.rms_norm(torch.ones(1, 4), torch.ones(4), 1e-5)  # the first call binds all
    for name in OP_FILES:
        monkeypatch.setattr(ops, name, note(name, getattr(ops, name)))
    monkeypatch.setattr(ops, "use_platform", lambda *_, **__: None)
    TinyEngine(files, max_rows=MAX_ROWS, step_tokens=48)
    names = {name for name, *_ in launched}
    assert names > {"paged_attention", "linear", "rms_norm", "fused_add_rms_norm"}
    assert unrehearsed and not any(unrehearsed)


@pytest.mark.parametrize("compiles", [False, True])
def test_every_size_is_rehearsed_once(
    compiles: bool, tmp_path: Path, graphs: FakeGraphs, monkeypatch
) -> None:
    """Before its capture, or where kernels are compiled ahead."""
    phases: list[str] = []
    rehearsed: list[tuple[int, str]] = []
    plain = CausalLM.rehearse

    def rehearse(self, input_ids, positions, context):
        rehearsed.append((len(input_ids), phases[-1]))
        return plain(self, input_ids, positions, context)

    monkeypatch.setattr(CausalLM, "rehearse", rehearse)
    monkeypatch.setattr(cpu.Platform, "compiles_kernels", compiles)
    monkeypatch.setattr(cpu.Platform, "compile_ahead", lambda _, works: [work() for work in works])
    make_worker(progress=lambda phase, _: phases.append(phase)).start()
    captured = [len(g.output.tokens) for g in graphs.of(DecodeOutput)]
    captured += [len(g.output.hidden) for g in graphs.of(MixedOutput)]
    assert sorted(size for size, _ in rehearsed) == sorted(captured)
    assert {phase == "compile kernels" for _, phase in rehearsed} == {compiles}


def test_rehearsals_launch_what_follows_a_graph(
    tmp_path: Path, graphs: FakeGraphs, monkeypatch
) -> None:
    launched: list[str] = []

    def note(context: pytest.MonkeyPatch, name: str) -> None:
        plain = getattr(ops, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            launched.append(name)
            return plain(*args, **kwargs)

        context.setattr(ops, name, noted)

    files = write_checkpoint(tmp_path, "llama")
    for grammars, expected in ((None, 0), (new_cache(), 1)):
        engine = TinyEngine(files, max_rows=MAX_ROWS, grammars=grammars)
        launched.clear()
        with monkeypatch.context() as context, torch.inference_mode():
            note(context, "mask_logits")
            note(context, "choose_tokens")
            for work in engine.worker._started.graph_step.rehearsals():
                work()
        assert launched.count("mask_logits") == expected
        assert launched.count("choose_tokens") == 3


@pytest.mark.parametrize(("family", "num_groups"), [("llama", 1), ("gemma3_text", 2)])
@pytest.mark.parametrize("how", ["graphs", "eager", "on demand"])
def test_attention_is_planned_once_a_step(
    how: str, family: str, num_groups: int, tmp_path: Path, graphs: FakeGraphs, monkeypatch
) -> None:
    """Where a graph holds the plan, nobody else makes one."""
    graphs.on_demand = how == "on demand"
    if how == "eager":
        monkeypatch.setattr(cpu.Platform, "graphs", None)
    engine = TinyEngine(write_checkpoint(tmp_path, family), max_rows=MAX_ROWS, step_tokens=48)
    planned, attended = [], set()
    plain = torch_backend.Backend.forward

    def forward(self, q, layer, context):
        if context.metadata[0].max_query_len > 1:  # a decode graph holds no plan
            assert {id(metadata) for metadata in context.metadata} <= set(map(id, planned))
            attended.update(map(id, context.metadata))
        return plain(self, q, layer, context)

    # Kept, so that no two have the same id.
    monkeypatch.setattr(torch_backend.Backend, "plan", lambda _, metadata: planned.append(metadata))
    monkeypatch.setattr(torch_backend.Backend, "forward", forward)
    engine.run(_requests(temperature=0.0))
    several = [metadata for metadata in planned if metadata.max_query_len > 1]
    assert len(several) >= 3 * num_groups
    assert {id(metadata) for metadata in several} == attended
    assert len(several) == len(attended)


def test_graphs_are_captured_largest_first_and_a_batch_takes_the_smallest_that_fits(
    tmp_path: Path, graphs: FakeGraphs
) -> None:
    files = write_checkpoint(tmp_path, "llama")
    engine = TinyEngine(files, max_rows=MAX_ROWS, step_tokens=64)
    decode, mixed = graphs.of(DecodeOutput), graphs.of(MixedOutput)
    assert [len(graph.output.tokens) for graph in decode] == [6, 4, 2, 1]
    assert [len(graph.output.hidden) for graph in mixed] == [64, 48, 32, 24, 16]
    engine.run(_requests(temperature=0.0)[:3])  # prompts of 5, 14 and 23 tokens
    assert [graph.num_replays for graph in decode] == [0, 5, 0, 0]
    assert [graph.num_replays for graph in mixed] == [0, 1, 0, 0, 0]


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
def test_a_backlog_fills_mixed_graphs_and_gets_the_tokens_of_eager_steps(
    tmp_path: Path, graphs: FakeGraphs, monkeypatch, overlap: bool
) -> None:
    files = write_checkpoint(tmp_path, "llama")
    lengths = np.random.default_rng(9).integers(4, 20, 30).tolist()
    requests = [
        request(i, prompt.prompt_token_ids.tolist(), 4 + i % 9, seed=i, temperature=i % 2)
        for i, prompt in enumerate(_prompts(lengths, 3))
    ]
    expected = _eager(files, requests, monkeypatch)
    replays = []
    for full_step in (32, 0):
        monkeypatch.setattr(mixed_graph, "_FULL_STEP", full_step)
        engine = TinyEngine(files, max_rows=MAX_ROWS, step_tokens=96, overlap=overlap)
        assert engine.run(requests) == expected
        replays.append(engine.worker._started.mixed_graphs.num_replays)
    assert replays[0] < replays[1]


def test_a_backend_that_captures_decode_alone_leaves_prefill_eager(
    tmp_path: Path, graphs: FakeGraphs, monkeypatch
) -> None:
    monkeypatch.setattr(torch_backend.Backend, "graph_support", GraphSupport.DECODE)
    TinyEngine(write_checkpoint(tmp_path, "llama"), max_rows=MAX_ROWS)
    assert graphs.of(DecodeOutput)
    assert not graphs.of(MixedOutput)


def test_eager_is_kept_on_request(tmp_path: Path, graphs: FakeGraphs, monkeypatch) -> None:
    monkeypatch.setattr(torch_backend.Backend, "graph_support", GraphSupport.NONE)
    TinyEngine(write_checkpoint(tmp_path, "llama"), max_rows=MAX_ROWS)
    assert graphs.captured == []


def test_rows_with_a_shared_prefix_run_in_graphs_that_are_told(
    tmp_path: Path, graphs: FakeGraphs, monkeypatch
) -> None:
    monkeypatch.setattr(torch_backend.Backend, "reads_shared_prefixes", True)
    monkeypatch.setattr(sharing, "MIN_SAVED_TOKENS", 64)
    monkeypatch.setattr(prefix_rows, "PREFIX_UNIT", 16)
    told = []
    plain = torch_backend.Backend.forward

    def forward(self, q, layer, context):
        metadata = context.metadata[context.group_of_layer[layer.layer_id]]
        if metadata.prefix is not None:
            told.append((metadata.prefix.lens.tolist(), metadata.prefix.members[0].tolist()))
        return plain(self, q, layer, context)

    monkeypatch.setattr(torch_backend.Backend, "forward", forward)
    files = write_checkpoint(tmp_path, "llama")
    shared = np.random.default_rng(3).integers(0, VOCAB_SIZE, 40).tolist()
    requests = [request(0, [7], 12)]
    requests += [request(i, [*shared, i], 4 + i, temperature=0.0) for i in range(1, 11)]
    expected = _eager(files, requests, monkeypatch)
    engine = TinyEngine(files, max_rows=16)
    told.clear()
    warm = [request(99, [*shared, 99], 1)]  # the prefix is in the cache before the others come
    engine.run(warm)
    assert engine.run(requests) == expected
    assert told, "no step was told"
    lens, members = told[0]
    places = [place for place in members if place >= 0]
    # 40 shared tokens are two units of 16; row 0 has nothing in common with the others.
    assert len(places) == 10
    assert [lens[place] for place in places] == [32] * 10
    assert sum(lens) == 320


def _prompts(lengths: list[int], seed: int) -> list[Request]:
    rng = np.random.default_rng(seed)
    return [
        request(100 * seed + i, rng.integers(0, VOCAB_SIZE, length).tolist(), 4, temperature=0.0)
        for i, length in enumerate(lengths)
    ]


def test_on_demand_a_step_of_a_size_that_came_before_is_captured_as_it_is(
    tmp_path: Path, graphs: FakeGraphs, monkeypatch
) -> None:
    graphs.on_demand = True
    files = write_checkpoint(tmp_path, "gemma3_text")
    engine = TinyEngine(files, max_rows=MAX_ROWS, step_tokens=100)
    before = [len(graph.output.hidden) for graph in graphs.of(MixedOutput)]
    assert 37 not in before
    for seed, (captured, replays) in enumerate([(0, 0), (1, 0), (1, 1), (1, 2)], start=1):
        # One step of 37 tokens, cut into two rows differently each time.
        requests = _prompts([20 + seed, 17 - seed], seed)
        expected = _eager(files, requests, monkeypatch)
        assert engine.run(requests) == expected
        mixed = [g for g in graphs.of(MixedOutput) if len(g.output.hidden) == 37]
        assert len(mixed) == captured
        assert sum(graph.num_replays for graph in mixed) == replays


def test_on_demand_the_graph_that_was_used_longest_ago_goes_first(
    tmp_path: Path, graphs: FakeGraphs, monkeypatch
) -> None:
    graphs.on_demand = True
    monkeypatch.setattr(mixed_graph, "MAX_ON_DEMAND", 2)
    engine = TinyEngine(write_checkpoint(tmp_path, "llama"), max_rows=MAX_ROWS, step_tokens=100)
    graphs.captured.clear()
    for seed, length in enumerate([41, 41, 42, 42, 41, 43, 43, 41, 42], start=1):
        engine.run(_prompts([length], seed))
    mixed = [len(graph.output.hidden) for graph in graphs.of(MixedOutput)]
    assert mixed == [41, 42, 43, 42]


def test_on_demand_a_model_that_cannot_be_captured_stays_eager(
    tmp_path: Path, graphs: FakeGraphs, monkeypatch
) -> None:
    graphs.on_demand = True
    files = write_checkpoint(tmp_path, "llama")
    engine = TinyEngine(files, max_rows=MAX_ROWS, step_tokens=100)
    tries = []

    def capture(work):
        tries.append(work())  # it may have run to its end
        raise CaptureError("it reads tensors on the host")

    monkeypatch.setattr(graphs, "capture", capture)
    steps = engine.worker.stats().mixed_graph_steps
    for seed in (1, 2, 3, 4):
        requests = _prompts([44], seed)
        expected = _eager(files, requests, monkeypatch)
        assert engine.run(requests) == expected
    assert len(tries) == 1
    assert engine.worker.stats().mixed_graph_steps == steps
