"""The code of the README and of the guides runs as it stands, and what they name exists."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text()
GUIDES = [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str, pages=(README,)) -> list[str]:
    return [code for page in pages for name, code in BLOCK.findall(page) if name == language]


def first_words(code: str) -> str:
    lines = [line for line in code.splitlines() if line and not line.startswith("import")]
    return lines[0][:40]


@pytest.mark.parametrize(
    "code", [pytest.param(c, id=first_words(c)) for c in blocks("python", [README, *GUIDES])]
)
def test_python_block_runs(code, tmp_path):
    if "torch.jit" in code and sys.version_info >= (3, 14):
        pytest.skip("torch.jit.script is gone from Python 3.14 on")
    paths = [p for p in sys.path if p]
    result = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-2000:]


def test_there_is_something_to_run():
    assert len(blocks("python")) >= 4
    assert len(blocks("cpp")) == len(blocks("cmake")) == 1


def test_commands_are_named():
    assert "make demo" in README and "make test" in README
    assert "pip install --no-build-isolation ." in README


def test_layers_modules_and_operators_exist():
    import posenc
    import torch

    rows = [line for line in README.splitlines() if line.startswith("| ") and "`nn::" in line]
    assert len(rows) >= 7
    headers = "\n".join(p.read_text() for p in (ROOT / "csrc/posenc").glob("*/*.h"))
    for row in rows:
        _, _, layers, modules, operators, _ = row.split("|")
        for layer in re.findall(r"`(\w+)`", layers):
            assert hasattr(posenc, layer), layer
        for module in re.findall(r"`nn::(\w+)`", modules):
            assert re.search(rf"TORCH_MODULE\({module}\)|class {module} ", headers), module
            assert hasattr(posenc.cpp, module), module
        for operator in re.findall(r"`(\w+)`", operators):
            if operator != "scaled_dot_product_attention":
                assert hasattr(torch.ops.posenc, operator), operator
                assert hasattr(posenc.functional, operator), operator


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target


def test_table_is_that_of_the_demo():
    """Rows of the results: one an encoding, each growth the difference of its two ends."""
    rows = re.findall(r"^\| (\w+) +\| +[\d,]+ \|(.*)\|$", README, re.MULTILINE)
    assert [name for name, _ in rows] == ["sinusoidal", "learned", "RoPE", "ALiBi", "none"]
    for name, cells in rows:
        values = [cell.strip() for cell in cells.split("|")]
        if name == "learned":
            assert values[1:] == ["–"] * (len(values) - 1)
        else:
            first, last, growth = float(values[0]), float(values[-2]), float(values[-1])
            assert growth == pytest.approx(last - first, abs=0.0011)
