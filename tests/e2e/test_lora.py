"""LoRA adapters over HTTP: served from the start, loaded and unloaded while the server runs."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from harness import Server, running
from safetensors.torch import save_file


def write_adapter(folder: Path, seed: int) -> Path:
    """A PEFT folder for the tiny model, large enough to change answers."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(2):
        for module in ("self_attn.o_proj", "mlp.down_proj"):
            name = f"base_model.model.model.layers.{layer}.{module}"
            columns = 64 if "o_proj" in module else 128
            tensors[f"{name}.lora_A.weight"] = torch.randn(4, columns, generator=generator)
            tensors[f"{name}.lora_B.weight"] = torch.randn(64, 4, generator=generator)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 4}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("adapters")
    return [write_adapter(root / f"a{seed}", seed) for seed in (1, 2)]


@pytest.fixture(scope="module")
def adapted(model: Path, folders: list[Path]) -> Iterator[Server]:
    flags = ("--lora-modules", f"first={folders[0]}", "--max-loras", "2", "--enable-admin")
    with running(model, *flags) as server:
        yield server


def tokens(server: Server, name: str) -> list[int]:
    answer = server.complete(
        model=name, temperature=0, max_tokens=16, ignore_eos=True, return_token_ids=True
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == name
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    return found


def names(server: Server) -> dict[str, str | None]:
    cards = server.http.get("/v1/models").json()["data"]
    return {card["id"]: card["parent"] for card in cards}


def test_an_adapter_is_a_model_of_its_own(adapted: Server) -> None:
    assert names(adapted) == {"tiny": None, "first": "tiny"}
    assert tokens(adapted, "first") != tokens(adapted, "tiny")
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "model": "first"}
    assert adapted.http.post("/v1/chat/completions", json=chat).json()["model"] == "first"


def test_adapters_come_and_go_while_the_server_runs(adapted: Server, folders: list[Path]) -> None:
    first, base = tokens(adapted, "first"), tokens(adapted, "tiny")
    load = {"lora_name": "second", "lora_path": str(folders[1])}
    assert adapted.complete(model="second").status_code == 404
    assert adapted.http.post("/v1/load_lora_adapter", json=load).status_code == 200
    assert tokens(adapted, "second") not in (first, base)
    assert adapted.http.post("/v1/load_lora_adapter", json=load).status_code == 400
    full = adapted.http.post("/v1/load_lora_adapter", json=load | {"lora_name": "third"})
    assert full.status_code == 400 and "--max-loras" in full.json()["error"]["message"]
    assert adapted.http.post("/v1/unload_lora_adapter", json=load).status_code == 200
    assert adapted.http.post("/v1/unload_lora_adapter", json=load).status_code == 404
    assert adapted.complete(model="second").status_code == 404
    # The same name with other weights: nothing of the old ones is in the prefix cache.
    again = load | {"lora_path": str(folders[0])}
    assert adapted.http.post("/v1/load_lora_adapter", json=again).status_code == 200
    assert tokens(adapted, "second") == first
    assert adapted.http.post("/v1/unload_lora_adapter", json=again).status_code == 200


def test_a_folder_that_is_no_adapter_is_refused_and_named(adapted: Server, tmp_path: Path) -> None:
    body = {"lora_name": "bad", "lora_path": str(tmp_path)}
    answer = adapted.http.post("/v1/load_lora_adapter", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "lora_path"
    assert names(adapted).keys() == {"tiny", "first"}


def test_without_administration_nobody_loads_adapters(server: Server) -> None:
    body = {"lora_name": "x", "lora_path": "/"}
    assert server.http.post("/v1/load_lora_adapter", json=body).status_code == 404
