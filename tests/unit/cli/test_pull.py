import pytest

from xllm.assembly import bundled, resolve
from xllm.core.messages.server import EngineProgress
from xllm.entrypoints.cli import main as cli


def test_without_a_name_every_short_name_and_its_terms_are_listed(capsys):
    assert cli.main(["pull"]) == 0
    out = capsys.readouterr().out
    for name in ("smollm2", "gemma3-270m", "minilm"):
        assert name in out
    assert "Apache License 2.0" in out and "Gemma Terms of Use" in out


def test_the_licence_and_the_place_are_printed(monkeypatch, capsys):
    def fetch(config, on_progress):
        on_progress(EngineProgress("downloading", 0.5))
        on_progress(EngineProgress("unpacking", 1.0))
        return f"/models/{config.model.model}"

    monkeypatch.setattr(bundled, "fetch", fetch)
    assert cli.main(["pull", "gemma3-270m"]) == 0
    out, err = capsys.readouterr()
    assert "Gemma Terms of Use" in out and out.endswith("/models/gemma3-270m\n")
    assert "downloading" in err


def test_an_unknown_name_lists_the_known(capsys):
    assert cli.main(["pull", "smollm3"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "smollm2" in line


def test_a_failed_download_is_one_line(monkeypatch, capsys):
    def fail(config, progress):
        raise RuntimeError("no network")

    monkeypatch.setattr(resolve, "resolve_model", fail)
    assert cli.main(["pull", "smollm2"]) == 2
    assert capsys.readouterr().err.endswith("xllm pull: error: no network\n")


@pytest.mark.parametrize("model", bundled.bundled_models(), ids=lambda model: model.name)
def test_every_bundled_model_states_title_size_and_licence(model):
    assert model.title and model.licence and model.num_bytes > 0
