"""Every example in a docstring runs, and every public name says what it takes and gives."""

import doctest
import importlib
import inspect
import pkgutil
import re
import typing

import posenc
import posenc.functional
import pytest
import torch
from torch import nn

# A command's own module, not to be run here.
MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(posenc.__path__, "posenc.")
    if not name.rpartition(".")[2].startswith(("_C", "__main__"))
]
#: What the examples take for granted, as the reference says.
NAMES = {"torch": torch, "posenc": posenc, "P": posenc.functional}


def module(name: str):
    needs = {"posenc.plots": "matplotlib", "posenc.integrations.transformers": "transformers"}
    for start, package in needs.items():
        if name.startswith(start):
            pytest.importorskip(package)
    return importlib.import_module(name)


def examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found: dict[str, doctest.DocTest] = {}
    for name in ["posenc", *MODULES]:
        try:
            source = importlib.import_module(name)
        except ImportError:  # an extra that is not installed
            continue
        for test in finder.find(source, name, globs={}, extraglobs=NAMES):
            if test.examples:
                found[test.name] = test
    return list(found.values())


@pytest.mark.parametrize("test", [pytest.param(t, id=t.name) for t in examples()])
def test_example_runs(test, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an example may write a file
    said: list[str] = []
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.DocTestRunner(optionflags=flags).run(test, out=said.append)
    assert result.failed == 0, "".join(said)
    assert result.attempted > 0


OPERATORS = [(f"functional.{name}", getattr(posenc.functional, name)) for name in
             posenc.functional.__all__]  # fmt: skip
LAYERS = [
    (name, getattr(posenc, name))
    for name in posenc.__all__
    if inspect.isclass(getattr(posenc, name)) and issubclass(getattr(posenc, name), nn.Module)
]
#: (B, L, D), (n), (..., d_model), (2, height * width), "any shape", "the mask's shape"
SHAPE = re.compile(r"\((\*?[A-Za-z0-9_. ]+(, | [*/+] )?)+\)|shape\b")


def has_tensor(function) -> bool:
    try:
        hints = typing.get_type_hints(function).values()
    except NameError:  # a type that is imported for checkers alone
        hints = function.__annotations__.values()
    return any("Tensor" in str(hint) for hint in hints) or not hints


@pytest.mark.parametrize("name, function", OPERATORS, ids=[name for name, _ in OPERATORS])
def test_operator_says_shapes_and_has_an_example(name, function):
    text = inspect.getdoc(function) or ""
    assert len(text) > 40, f"{name}: expected a docstring, got {text!r}"
    assert ">>>" in text, f"{name}: expected an example"
    if has_tensor(function):
        assert SHAPE.search(text.partition(">>>")[0]), f"{name}: expected shapes"


@pytest.mark.parametrize("name, layer", LAYERS, ids=[name for name, _ in LAYERS])
def test_layer_says_shapes_and_has_an_example(name, layer):
    text = layer.__doc__ or ""
    assert "Args:" in text and ">>>" in text, f"{name}: expected arguments and an example"
    forward = layer.forward.__doc__ or ""
    assert "Args:" in forward and SHAPE.search(forward), f"{name}.forward: expected shapes"
    for key, method in vars(layer).items():
        if not key.startswith("_") and callable(method) and key != "extra_repr":
            assert method.__doc__, f"{name}.{key}: expected a docstring"


@pytest.mark.parametrize("name, layer", LAYERS, ids=[name for name, _ in LAYERS])
def test_layer_describes_each_argument(name, layer):
    args = inspect.getdoc(layer).partition("Args:")[2]
    for argument in inspect.signature(layer).parameters:
        assert re.search(rf"^    [^:\n]*\b{argument}\b[^:\n]*:", args, re.MULTILINE), (
            f"{name}: expected {argument} among its Args"
        )


@pytest.mark.parametrize(
    "where",
    [
        "posenc",
        "posenc.analysis",
        "posenc.benchmark",
        "posenc.cpp",
        "posenc.integrations.transformers",
        "posenc.plots",
        "posenc.training",
    ],
)
def test_public_name_has_a_docstring(where):
    for name in module(where).__all__:
        value = getattr(module(where), name)
        if callable(value) or inspect.ismodule(value):
            assert value.__doc__ and len(value.__doc__) > 20, f"{where}.{name}"
            assert not value.__doc__.startswith(f"{name}("), f"{where}.{name}"  # made by dataclass


@pytest.mark.parametrize("where", ["posenc.analysis", "posenc.plots", "posenc.cpp"])
def test_what_takes_or_gives_tensors_says_shapes(where):
    for name in module(where).__all__:
        value = getattr(module(where), name)
        if inspect.isfunction(value) and has_tensor(value):
            assert SHAPE.search(value.__doc__), f"{where}.{name}"
        elif inspect.isclass(value) and issubclass(value, nn.Module):
            texts = [value.__doc__, value.forward.__doc__]
            assert any(SHAPE.search(t) or "see `posenc." in t for t in texts), f"{where}.{name}"
