"""posenc needs torch alone; what is missing for more is named."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import posenc
import pytest
import torch
from posenc import plots
from posenc._extras import MissingExtra, need, progress
from posenc.cli import main

ROOT = Path(__file__).resolve().parents[3]


def hide(monkeypatch, package):
    for name in [n for n in sys.modules if n.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)


def test_the_import_loads_no_extra():
    code = (
        "import sys, torch\n"
        "before = set(sys.modules)\n"
        "import posenc\n"
        "assert all(name in dir(posenc) for name in posenc.__all__)\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - {'torch', *sys.stdlib_module_names}))\n"
        "late = ('analysis', 'benchmark', 'cli', 'cpp', 'plots', 'training')\n"
        "print([name for name in late if 'posenc.' + name in sys.modules])\n"
        "import posenc.analysis, posenc.plots, posenc.cli\n"
        "print('matplotlib' in sys.modules)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == ["['posenc']", "[]", "False"]


def test_every_public_name_is_there():
    for name in posenc.__all__:
        assert getattr(posenc, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        getattr(posenc, "nope")  # noqa: B009


@pytest.mark.parametrize("name", plots.PICTURES)
def test_without_matplotlib_each_picture_names_the_extra(name, monkeypatch):
    hide(monkeypatch, "matplotlib")
    with pytest.raises(MissingExtra, match=r"matplotlib.*pip install posenc\[plots\]"):
        plots.PICTURES[name].function()


def test_without_matplotlib_the_command_names_the_extra(monkeypatch, capsys, tmp_path):
    hide(monkeypatch, "matplotlib")
    assert main(["plot", "alibi", "-o", str(tmp_path / "a.png")]) == 1
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1 and "pip install posenc[plots]" in err
    assert main(["train", "--output", str(tmp_path / "out")]) == 1
    assert "pip install posenc[train]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists(), "told after the work, not before it"
    assert main(["analyze"]) == 0 and main(["list", "pictures"]) == 0


def test_without_tqdm_there_is_no_bar(monkeypatch, capsys):
    hide(monkeypatch, "tqdm")
    assert list(progress([1, 2], desc="x", unit="y")) == [1, 2]
    assert capsys.readouterr().err == ""


def test_with_tqdm_the_bar_is_on_standard_error(capsys):
    pytest.importorskip("tqdm")
    assert list(progress([1, 2], desc="counting", unit="y")) == [1, 2]
    seen = capsys.readouterr()
    assert "counting" in seen.err and seen.out == ""


def test_an_error_inside_a_package_is_not_taken_for_its_absence(monkeypatch, tmp_path):
    (tmp_path / "broken_package.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there") as caught:
        need("broken_package", "plots", "x")
    assert not isinstance(caught.value, MissingExtra)
    assert need("torch.nn", "plots", "x") is torch.nn


def test_every_extra_that_is_named_exists():
    declared = (ROOT / "pyproject.toml").read_text()
    extras = set(
        re.findall(r"^(\w+) = \[", declared.split("[project.optional-dependencies]")[1], re.M)
    )
    named = set()
    for path in (ROOT / "python" / "posenc").rglob("*.py"):
        named |= set(re.findall(r"posenc\[(\w+)\]", path.read_text()))
        named |= set(re.findall(r'need\("[\w.]+", "(\w+)"', path.read_text()))
    named.discard("extra")  # a placeholder of docstrings
    assert {"plots", "train", "bench", "checkpoint"} <= named <= extras
    assert 'posenc = "posenc.cli:main"' in declared


def test_the_installed_command():
    scripts = importlib.metadata.entry_points(group="console_scripts", name="posenc")
    if not scripts:
        pytest.skip("posenc is used from a checkout, not installed")
    (script,) = scripts
    assert script.load() is main
