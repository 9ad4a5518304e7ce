"""An adapter's answers are those of a model whose weights were merged with it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.contract.equivalence.tiny_engine import (
    SAMPLED,
    TinyEngine,
    Tokens,
    request,
    write_checkpoint,
)
from xllm.core.config.files import ModelFiles
from xllm.core.request.request import Request
from xllm.modeling.weights.adapter import read_adapter

MODULES = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj")
PROMPT = [7, 3, 250, 11, 90] * 5  # three full blocks: prefixes would be shared
HANDLES = (1, 2, 3)  # handle 3 has the plain model


def write_adapter(folder: Path, base: dict[str, torch.Tensor], seed: int, rank: int) -> Path:
    """A PEFT folder of random weights, large enough to change answers."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, weight in base.items():
        module = name.removesuffix(".weight")
        if module.partition("layers.")[2][2:] not in MODULES:
            continue
        rows, columns = weight.shape
        path = f"base_model.model.{module}"
        tensors[f"{path}.lora_A.weight"] = torch.randn(rank, columns, generator=generator)
        tensors[f"{path}.lora_B.weight"] = torch.randn(rows, rank, generator=generator) / columns
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def merge(files: ModelFiles, adapter: Path, folder: Path) -> ModelFiles:
    """The checkpoint with an adapter inside: W + (alpha / r) B A."""
    tensors = load_file(files.weights[0])
    config = json.loads((adapter / "adapter_config.json").read_text())
    low = load_file(adapter / "adapter_model.safetensors")
    for name in [n for n in low if n.endswith("lora_A.weight")]:
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        b = low[name.replace("lora_A", "lora_B")]
        tensors[f"{module}.weight"] += config["lora_alpha"] / config["r"] * (b @ low[name])
    folder.mkdir()
    path = folder / "model.safetensors"
    save_file(tensors, path)
    return dataclasses.replace(files, weights=(str(path),))


@dataclasses.dataclass(frozen=True)
class Case:
    files: ModelFiles
    adapters: tuple[Path, Path]
    expected: Tokens  # by (handle, 0)


def ask(handle: int, adapter: int, **params: Any) -> Request:
    plain = request(handle, PROMPT, seed=5, **(params or {"temperature": 0.0}))
    return msgspec.structs.replace(plain, adapter=adapter)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("lora")
    files = write_checkpoint(folder, "llama")
    base = load_file(files.weights[0])
    adapters = tuple(write_adapter(folder / f"adapter{s}", base, s, 3 + s) for s in (1, 2))
    merged = [merge(files, adapter, folder / f"merged{i}") for i, adapter in enumerate(adapters)]
    expected: Tokens = {}
    for handle, model in zip(HANDLES, [*merged, files], strict=True):
        expected |= TinyEngine(model).run([ask(handle, 0)])
    assert len({tuple(tokens) for tokens in expected.values()}) == len(HANDLES)
    return Case(files, adapters, expected)


def engine_with(case: Case, **options: Any) -> tuple[TinyEngine, list[int]]:
    engine = TinyEngine(case.files, max_loras=2, **options)
    loaded = [engine.loop.load_adapter(path.name, str(path)) for path in case.adapters]
    assert [entry.error for entry in loaded] == [None, None]
    return engine, [*(entry.adapter for entry in loaded), 0]


VARIANTS = {
    "plain loop": {},
    "overlap": {"overlap": True},
    "chunk 8": {"step_tokens": 8},
    "preempted": {"num_kv_tokens": 80, "overlap": True},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_adapters_of_one_batch_answer_like_merged_models(case: Case, options: dict[str, Any]):
    engine, adapters = engine_with(case, **options)
    requests = [ask(h, a) for h, a in zip(HANDLES, adapters, strict=True)]
    assert engine.run(requests) == case.expected
    # Again, with every prefix in the cache: nobody takes another adapter's blocks.
    assert engine.run(requests[::-1]) == case.expected
    assert (engine.stats.num_preemptions > 0) == ("num_kv_tokens" in options)
    assert engine.stats.prefix_hits > 0 or "num_kv_tokens" in options
    engine.worker._started.adapters.check()


def test_sampled_rows_have_adapters_too(case: Case):
    engine, adapters = engine_with(case)
    both = engine.run([ask(1, adapters[0], **SAMPLED), ask(3, 0, **SAMPLED)])
    alone = TinyEngine(case.files).run([ask(3, 0, **SAMPLED)])
    assert both[3, 0] == alone[3, 0] != both[1, 0]


def test_an_adapter_leaves_when_its_last_request_has_ended(case: Case):
    engine, adapters = engine_with(case)
    loop = engine.loop
    loop.submit(ask(1, adapters[0]))
    loop.step()
    loop.unload_adapter(adapters[0])
    full = loop.load_adapter("late", str(case.adapters[1]))
    assert full.error is not None and "--max-loras" in full.error
    assert engine.run([]) and engine.scheduler.has_work is False
    late = loop.load_adapter("late", str(case.adapters[1]))
    assert late.error is None and late.adapter not in adapters
    assert engine.run([ask(2, late.adapter)]) == {(2, 0): case.expected[2, 0]}
    loop.submit(ask(4, adapters[0]))
    (batch,) = loop.step()
    assert [(f.handle, f.status) for f in batch.failures] == [(4, 404)]


def test_an_adapter_that_does_not_fit_is_refused_and_changes_nothing(case: Case, tmp_path: Path):
    engine, adapters = engine_with(case)
    engine.loop.unload_adapter(adapters[1])
    weights = load_file(case.adapters[0] / "adapter_model.safetensors")

    def refusal(name: str, tensors: dict[str, torch.Tensor], **config: Any) -> str:
        folder = tmp_path / name
        folder.mkdir()
        save_file(tensors, folder / "adapter_model.safetensors")
        text = json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 4, **config})
        (folder / "adapter_config.json").write_text(text)
        loaded = engine.loop.load_adapter(name, str(folder))
        assert loaded.adapter == 0 and loaded.error is not None
        return loaded.error

    name = next(iter(weights)).rpartition(".lora_")[0]
    a, b = torch.zeros(4, 48), torch.zeros(64, 4)
    assert "does not have" in refusal("module", {"x.lora_A.weight": a, "x.lora_B.weight": b})
    assert "shapes must be" in refusal(
        "shape", {f"{name}.lora_A.weight": a[:, :7].clone(), f"{name}.lora_B.weight": b}
    )
    assert "lacks" in refusal("half", {f"{name}.lora_A.weight": a})
    assert "low-rank" in refusal("other", {"lm_head.weight": a})
    assert "use_dora" in refusal("dora", weights, use_dora=True)
    assert "alora_invocation" in refusal("alora", weights, alora_invocation_tokens=[1, 2])
    pissa = refusal("pissa", weights, init_lora_weights="pissa_niter_4")
    assert "init_lora_weights 'pissa_niter_4' changes the model's own weights" in pissa
    for alpha in (None, True, math.nan, 1e999, 10**400):
        found = refusal(f"alpha-{str(alpha)[:4]}", weights, lora_alpha=alpha)
        assert "lora_alpha must be a number" in found
    nan = {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b / 0}
    assert "not finite" in refusal("nan", nan)
    none = {f"{name}.lora_A.weight": a[:0].clone(), f"{name}.lora_B.weight": b[:, :0].clone()}
    assert "rank 0" in refusal("none", none)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "adapter_config.json")
    assert "is no file" in engine.loop.load_adapter("pipe", str(tmp_path / "pipe")).error
    a, b = torch.zeros(9, 48), torch.zeros(64, 9)
    assert "at most 8" in refusal("rank", {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b})
    assert "cannot be read" in engine.loop.load_adapter("no", str(tmp_path / "no")).error
    assert engine.run([ask(1, adapters[0])]) == {(1, 0): case.expected[1, 0]}


def test_modules_are_found_by_the_names_of_a_multimodal_checkpoint(tmp_path: Path):
    files = write_checkpoint(tmp_path, "gemma3_text")
    folder = write_adapter(tmp_path / "a", load_file(files.weights[0]), 4, 4)
    path = folder / "adapter_model.safetensors"
    weights = load_file(path)
    save_file({n.replace(".layers.", ".language_model.layers."): weights[n] for n in weights}, path)
    assert all(".model.language_model.layers." in name for name in load_file(path))
    loaded = TinyEngine(files, max_loras=1).loop.load_adapter("a", str(folder))
    assert loaded.error is None


def test_every_module_is_scaled_by_its_own_rank(case: Case, tmp_path: Path):
    """Ranks of ``rank_pattern`` are those of the tensors."""
    folder = write_adapter(tmp_path / "a", load_file(case.files.weights[0]), 4, 4)
    path = folder / "adapter_model.safetensors"
    weights = load_file(path)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    weights[name.format("A")] = weights[name.format("A")][:2].clone()
    weights[name.format("B")] = b = weights[name.format("B")][:, :2].clone()
    save_file(weights, path)
    config = json.loads((folder / "adapter_config.json").read_text())
    pattern = {"rank_pattern": {"layers.0.self_attn.q_proj": 2}}
    (folder / "adapter_config.json").write_text(json.dumps(config | pattern))
    found = read_adapter(str(folder))["model.layers.0.self_attn.q_proj"]
    torch.testing.assert_close(found.b, b * config["lora_alpha"] / 2)


def test_the_scale_is_alpha_over_r_or_its_root(case: Case, tmp_path: Path):
    folder = write_adapter(tmp_path / "a", load_file(case.files.weights[0]), 4, 4)
    config = json.loads((folder / "adapter_config.json").read_text())
    plain = read_adapter(str(folder))
    (folder / "adapter_config.json").write_text(json.dumps(config | {"use_rslora": True}))
    rooted = read_adapter(str(folder))
    for module, weights in plain.items():
        torch.testing.assert_close(rooted[module].b, weights.b * math.sqrt(4))
