"""How ops reach a platform's kernels, and what happens without a compiler."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from xllm.hardware.kernels import binding, ops, reference
from xllm.hardware.kernels.cpu import native


@pytest.fixture(autouse=True)
def _restore():
    yield
    ops.use_platform("reference")


def test_an_unknown_platform_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown kernel platform 'npu'; known: cpu, reference"):
        ops.use_platform("npu")


def test_binding_is_lazy_and_then_direct() -> None:
    ops.use_platform("reference")
    assert ops.rms_norm is not reference.rms_norm
    ops.rms_norm(torch.ones(1, 4), torch.ones(4), 1e-5)
    assert ops.rms_norm is reference.rms_norm
    assert ops.linear is reference.linear


def test_every_op_has_a_reference_or_is_made_of_others() -> None:
    made_of_others = {"gated_linear", "linear_add_rms_norm", "experts_add_rms_norm"}
    assert set(binding.implementations("reference")) == set(binding.OP_FILES) - made_of_others


def test_an_op_made_of_others_calls_the_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, residual = torch.ones(4), torch.ones(1, 4)
    ops.use_platform("reference")
    packed = ops.pack_linear(torch.eye(4))
    monkeypatch.setattr(ops, "linear", lambda x, packed, bias: 2 * reference.linear(x, packed))
    normed, _ = ops.linear_add_rms_norm(torch.ones(1, 4), packed, None, residual, weight, 0.0)
    assert residual.tolist() == [[3.0] * 4]
    assert normed.tolist() == [[1.0] * 4]


def test_a_tracer_sees_shapes_without_running_kernels() -> None:
    ops.use_platform("reference", traceable=True)
    packed = ops.pack_linear(torch.randn(32, 64))
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(3, 64)
        assert ops.rms_norm(x, torch.empty(64), 1e-5).shape == (3, 64)
        assert ops.act_and_mul(x, "silu").shape == (3, 32)
        assert ops.linear(x, packed).shape == (3, 32)
        assert ops.gated_linear(x, packed, None, "silu").shape == (3, 16)


def test_traceable_ops_compute_the_same() -> None:
    x, weight = torch.randn(3, 64), torch.randn(64)
    residual = torch.randn(3, 64)
    expected = reference.fused_add_rms_norm(x, residual.clone(), weight, 1e-5)
    ops.use_platform("reference", traceable=True)
    actual = ops.fused_add_rms_norm(x, residual, weight, 1e-5)
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b)


def test_without_a_compiler_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(native.logger, "warning", lambda text, *args: lines.append(text % args))
    monkeypatch.setattr(native, "compiler", lambda: None)
    loader = native._Loader()
    assert loader.get() is None
    assert loader.get() is None
    (line,) = lines
    assert "apt install g++" in line


def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\n[ $1 = --version ] && exit 0\necho no such flag >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(native, "compiler", lambda: str(broken))
    monkeypatch.setattr(native, "cache_dir", lambda: tmp_path)
    with pytest.raises(RuntimeError, match="no such flag"):
        native.build()
    assert not list((tmp_path / "kernels").glob("*.so"))


def test_sources_and_flags_name_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    program = native.compiler()
    if program is None:
        pytest.skip("no C++ compiler: apt install g++")
    plain = native._key(program, ("-O3",))
    assert plain == native._key(program, ("-O3",))
    assert plain != native._key(program, ("-O2",))
