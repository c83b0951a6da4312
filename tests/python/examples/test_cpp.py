"""The C++ programs of the README and of examples/cpp build against the package and run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import posenc
import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
MAIN = re.compile(r"^```(cmake|cpp)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def tool(name: str) -> str | None:
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def call(*command: str | Path, timeout: int = 600) -> subprocess.CompletedProcess:
    result = subprocess.run(
        [str(c) for c in command], check=False, capture_output=True, text=True, timeout=timeout
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    return result


def build(source: Path, folder: Path, *targets: str) -> None:
    cmake, ninja = tool("cmake"), tool("ninja")
    if cmake is None or ninja is None:
        pytest.skip("needs cmake and ninja")
    prefix = posenc.cmake_prefix_path
    options = [f"-DCMAKE_PREFIX_PATH={prefix}", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    options += ["-DCMAKE_BUILD_TYPE=Release"]
    if shutil.which("ccache"):
        options += ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"]
    call(cmake, "-S", source, "-B", folder, *options)
    call(cmake, "--build", folder, *(a for t in targets for a in ("--target", t)))


def test_readme_program(tmp_path):
    found = dict(MAIN.findall((ROOT / "README.md").read_text()))
    (tmp_path / "CMakeLists.txt").write_text(found["cmake"])
    (tmp_path / "main.cpp").write_text(found["cpp"])
    build(tmp_path, tmp_path / "build")
    assert (ROOT / "examples/cpp/rotate.cpp").read_text().endswith(found["cpp"])
    out = call(tmp_path / "build" / "my_model").stdout
    assert out.split() == ["[2,", "100,", "8,", "64]", "[2,", "100,", "256]"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    build(ROOT / "examples" / "cpp", folder, "train", "run_scripted")
    return folder


def test_training_without_python(programs):
    lines = call(programs / "train").stdout.splitlines()
    losses = [float(line.split()[-1]) for line in lines]
    assert losses[0] > 2.5 and losses[-1] < 0.5, losses


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="torch.jit.script is gone")
def test_scripted_model_runs_in_cpp(programs, tmp_path):
    """A model scripted in Python continues a text in C++ as it does in Python."""
    small = "--steps 1 --batch-size 2 --d-model 16 --layers 1 --heads 2 --train-length 16"
    small += " --eval-lengths 16 --eval-bytes 16 --encodings rope alibi"
    script = ROOT / "examples" / "train_lm.py"
    call(sys.executable, script, *small.split(), "--output", tmp_path)

    for name in ("rope", "alibi"):
        path = tmp_path / f"{name}_scripted.pt"
        model = torch.jit.load(str(path))
        text = list(b"def ")
        with torch.no_grad():
            for _ in range(100):
                text.append(model(torch.tensor([text]))[0, -1].argmax().item())
        out = subprocess.run(
            [str(programs / "run_scripted"), str(path), "def "], check=True, capture_output=True
        ).stdout
        assert out == bytes(text) + b"\n"


def test_missing_model_is_a_clear_error(programs):
    command = [str(programs / "run_scripted"), os.devnull + "-no-such-file"]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 1 and "no-such-file" in result.stderr
