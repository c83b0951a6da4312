"""A training's results: written where they can be, before anything is said, and valid JSON."""

import io
import json
import math
import sys
from pathlib import Path

import pytest
import torch
from posenc.cli import main
from posenc.training import UserError, options, run, scripted

pytest.importorskip("matplotlib")

SCRIPT_IS_GONE = sys.version_info >= (3, 14)


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Of a training that takes a moment."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 50)
    import argparse

    def make(*words):
        parser = argparse.ArgumentParser()
        options.add_arguments(parser)
        small = (
            "--steps 2 --batch-size 2 --d-model 16 --layers 1 --heads 2 --train-length 16 "
            "--eval-lengths 16 32 --eval-bytes 64 --threads 1 --text text.txt --output out"
        )
        return options.settings_of(parser.parse_args([*small.split(), *words]), parser.error)

    return make


def strict(path):
    def refuse(constant):
        raise AssertionError(f"no JSON: {constant}")

    return json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=refuse)


@pytest.mark.parametrize("file", ["table.md", "results.json", "rope_scripted.pt"])
def test_an_output_that_cannot_be_written_is_told_before_the_training(file, settings, monkeypatch):
    Path("out", file).mkdir(parents=True)
    monkeypatch.setattr("posenc.training.train.train", None)
    with pytest.raises(UserError, match=rf"--output out: .*{file}"):
        run(settings("--encodings", "rope"), say=lambda text: None)
    assert [path.name for path in Path("out").iterdir()] == [file], "left behind"


def test_a_folder_that_takes_no_file(settings):
    if not Path("/proc/self").exists():
        pytest.skip("this system has no /proc")
    for encoding in ("rope", "none"):
        with pytest.raises(UserError, match=r"^--output /proc: "):
            run(settings("--output", "/proc", "--encodings", encoding), say=lambda text: None)


def test_a_model_that_diverges_is_a_result(settings):
    said = []
    results = run(settings("--lr", "1e30", "--encodings", "rope", "none"), say=said.append)
    assert strict("out/results.json") == json.loads(json.dumps(results, allow_nan=False))
    for name in ("rope", "none"):
        model = results["models"][name]
        assert model["losses"] == {16: None, 32: None} and model["growth"] is None
    text = "\n".join(said)
    assert "RoPE diverged" in text and "none diverged" in text and "Lowest loss" not in text
    if not SCRIPT_IS_GONE:
        assert "not finite" in results["models"]["rope"]["scripted"]["skipped"]
    assert Path("out/loss_by_length.png").exists()


def test_results_are_written_before_they_are_said(settings):
    class Gone(Exception):
        pass

    def say(text):
        if "| encoding" in text:
            raise Gone

    with pytest.raises(Gone):
        run(settings("--encodings", "none"), say)
    assert all(
        0 < loss < 10 for loss in strict("out/results.json")["models"]["none"]["losses"].values()
    )
    assert "growth 16 → 32" in Path("out/table.md").read_text(encoding="utf-8")


def test_an_arrow_that_the_terminal_lacks(settings, monkeypatch):
    settings()
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "latin-1"))
    words = "--steps 1 --batch-size 1 --d-model 4 --layers 1 --heads 1 --train-length 16"
    words += " --eval-lengths 16 32 --eval-bytes 64 --text text.txt --output out --encodings none"
    assert main(["train", *words.split()]) == 0
    assert b"growth 16 ? 32" in raw.getvalue() and strict("out/results.json")


@pytest.mark.skipif(SCRIPT_IS_GONE, reason="torch.jit.script is gone from Python 3.14 on")
@pytest.mark.parametrize("fault", ["write", "copy"])
def test_a_scripted_copy_that_fails_loses_no_result(fault, settings, monkeypatch):
    if fault == "copy":
        monkeypatch.setattr(scripted, "ALLOWED_DIFFERENCE", -1.0)
        words = "logits of the scripted copy differ"
    else:

        def save(*args):
            raise RuntimeError("open file failed\nand a stack")

        monkeypatch.setattr(torch.jit.ScriptModule, "save", save, raising=False)
        monkeypatch.setattr(torch.jit.RecursiveScriptModule, "save", save)
        words = "rope_scripted.pt: open file failed$"
    with pytest.raises(UserError, match=words):
        run(settings("--encodings", "rope"), say=lambda text: None)
    model = strict("out/results.json")["models"]["rope"]
    assert math.isfinite(model["losses"]["16"]) and "failed" in model["scripted"]


def test_torch_s_generator_stays_as_it_was(settings):
    state = torch.get_rng_state()
    run(settings("--encodings", "learned"), say=lambda text: None)
    assert torch.equal(torch.get_rng_state(), state)
