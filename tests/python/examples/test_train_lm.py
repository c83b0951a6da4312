"""examples/train_lm.py as a user runs it: a short training, its files, and its error messages."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("tqdm")

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
SMALL = [
    "--steps",
    "3",
    "--batch-size",
    "2",
    "--d-model",
    "16",
    "--layers",
    "1",
    "--heads",
    "2",
    "--train-length",
    "16",
]
SMALL += ["--eval-lengths", "16", "32", "--eval-bytes", "256", "--threads", "1"]
SCRIPT_IS_GONE = sys.version_info >= (3, 14)


def train_lm(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(EXAMPLES / "train_lm.py"), *map(str, arguments)]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=300
    )


@pytest.fixture
def script(capsys, monkeypatch):
    """Runs the script in this process, which has torch already: exit code, output, errors."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["train_lm.py", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            runpy.run_path(str(EXAMPLES / "train_lm.py"), run_name="__main__")
        seen = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, stop.value.code, seen.out, seen.err)

    return call


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs with equal settings: output and folder of each."""
    done = []
    for name in ("first", "second"):
        folder = tmp_path_factory.mktemp(name)
        result = train_lm(*SMALL, "--output", folder)
        assert result.returncode == 0, result.stderr[-2000:]
        done.append((result, folder))
    return done


def test_every_encoding_is_trained_and_measured(runs):
    result, folder = runs[0]
    figures = json.loads((folder / "results.json").read_text())
    assert set(figures["models"]) == {"sinusoidal", "learned", "rope", "alibi", "none"}
    for name, model in figures["models"].items():
        assert len(model["train_losses"]) == 3
        assert set(model["losses"]) == ({"16"} if name == "learned" else {"16", "32"})
        assert all(0 < loss < 10 for loss in model["losses"].values())
        assert name == "learned" or model["growth"] == pytest.approx(
            model["losses"]["32"] - model["losses"]["16"]
        )
    assert {"python", "torch", "posenc", "threads", "processor"} <= set(figures["machine"])
    assert (folder / "loss_by_length.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (folder / "table.md").read_text().strip() in result.stdout
    assert "learned: – where the length is past the 16 positions" in result.stdout
    assert "tokens/s" in result.stderr, "no progress bar"


def test_a_second_run_gives_the_same_figures(runs):
    tables = [(folder / "table.md").read_text() for _, folder in runs]
    assert tables[0] == tables[1]
    losses = [
        {
            n: m["train_losses"]
            for n, m in json.loads((f / "results.json").read_text())["models"].items()
        }
        for _, f in runs
    ]
    assert losses[0] == losses[1]


@pytest.mark.skipif(SCRIPT_IS_GONE, reason="torch.jit.script is gone from Python 3.14 on")
def test_scripted_copies_give_the_same_logits(runs):
    result, folder = runs[0]
    models = json.loads((folder / "results.json").read_text())["models"]
    for name in ("rope", "alibi"):
        assert (folder / f"{name}_scripted.pt").is_file()
        assert models[name]["scripted"]["largest_difference"] <= 1e-5
        assert f"{name}_scripted.pt saved and loaded again: the same" in result.stdout


def test_own_text_and_dtype(tmp_path, script):
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 50)
    result = script(
        *SMALL,
        "--text",
        text,
        "--encodings",
        "alibi",
        "--dtype",
        "bfloat16",
        "--output",
        tmp_path / "out",
    )
    assert result.returncode == 0, result.stderr[-2000:]
    figures = json.loads((tmp_path / "out" / "results.json").read_text())
    assert figures["text"]["train_bytes"] + figures["text"]["validation_bytes"] == 45 * 50 + 1
    assert list(figures["models"]) == ["alibi"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--text", "no-such-file.txt"], ["no such file", "no-such-file.txt"]),
        (["--train-length", "0"], ["--train-length", "at least 1", "0"]),
        (["--eval-lengths", "16", "-4"], ["--eval-lengths", "-4"]),
        (["--eval-lengths", "many"], ["--eval-lengths", "whole number", "many"]),
        (["--encodings", "rotary"], ["--encodings", "rotary", "rope", "alibi"]),
        (["--heads", "3"], ["--d-model", "--heads", "3"]),
        (["--d-model", "6", "--heads", "2"], ["rope", "even", "3"]),
        (["--lr", "nan"], ["--lr", "nan"]),
        (["--device", "nonsense"], ["--device", "nonsense"]),
        (["--eval-lengths", "100000000"], ["validation text", "--eval-lengths"]),
        (["--text", str(EXAMPLES / "train_lm.py"), "--train-length", "1000000"], ["training text"]),
        (
            ["--text", str(EXAMPLES / "train_lm.py"), "--output", str(ROOT / "VERSION")],
            ["--output"],
        ),
    ],
)
def test_errors_are_one_clear_line(arguments, words, tmp_path, script, monkeypatch):
    monkeypatch.chdir(ROOT)
    result = script(*SMALL, "--output", tmp_path, *arguments)
    assert result.returncode in (1, 2)
    assert "Traceback" not in result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert all(word in last for word in words), last


def test_cuda_asked_for_but_absent(tmp_path, script):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    result = script(*SMALL, "--output", tmp_path, "--device", "cuda")
    assert result.returncode == 1 and "no CUDA device" in result.stderr
    assert "Traceback" not in result.stderr


def test_help_names_every_choice(script):
    result = script("--help")
    assert result.returncode == 0
    for option in [
        "encodings",
        "train-length",
        "eval-lengths",
        "steps",
        "text",
        "device",
        "seed",
        "output",
        "dtype",
    ]:
        assert f"--{option}" in result.stdout


def test_windows_of_all_lengths_predict_the_same_bytes():
    import torch
    from posenc.training import text

    stretches = text.segments(torch.arange(1000), longest=64, total=320)
    assert stretches.shape == (5, 65)
    assert stretches[0, 0] == 0 and stretches[-1, -1] == 999
    for length in (16, 32, 64):
        inputs, targets = text.windows(stretches, length)
        assert inputs.shape == (5 * 64 // length, length)
        assert torch.equal(targets, inputs + 1)
        assert torch.equal(targets.flatten(), stretches[:, 1:].flatten())


def test_files_are_split_by_name(tmp_path):
    from posenc.training import text

    for i in range(60):
        (tmp_path / f"{i}.txt").write_text(f"file {i} ")
    first, again = text.load((tmp_path,)), text.load((tmp_path,))
    assert first.sha256 == again.sha256
    assert first.train_files + first.validation_files == 60
    assert 0 < first.validation_files < 20
