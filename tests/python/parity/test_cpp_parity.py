"""One set of options drives `posenc.X` and `posenc.cpp.X`: weights across, forward, backward.

The C++ module's forward runs wholly in C++. Mirrored modules drift apart unless each change is run
through both, so every row of the table of layers is.
"""

import copy
import io
import pickle

import posenc
import pytest
import torch
from samples.compare import assert_same
from samples.layers import ATTENTION_NAMES, LAYERS, PLAIN

by_layer = pytest.mark.parametrize("sample", LAYERS, ids=str)
by_kind = pytest.mark.parametrize("sample", PLAIN, ids=str)


def pair(sample, dtype=torch.float32):
    """The Python layer and the C++ one with its weights."""
    python = sample.build(dtype)
    cpp = sample.build(dtype, package=posenc.cpp, seed=1)
    cpp.load_state_dict(python.state_dict(), strict=True)
    return python, cpp


@by_layer
def test_equal_names_shapes_and_dtypes(sample):
    python, cpp = sample.build(), sample.build(package=posenc.cpp)
    assert isinstance(cpp, torch.nn.Module)
    mine = {n: (p.shape, p.dtype, p.requires_grad) for n, p in python.named_parameters()}
    theirs = {n: (p.shape, p.dtype, p.requires_grad) for n, p in cpp.named_parameters()}
    assert mine == theirs
    assert list(python.state_dict()) == list(cpp.state_dict())
    assert not list(cpp.buffers())
    assert {n for n, _ in python.named_children() if "proj" in n or "embedding" in n} == {
        n for n, _ in cpp.named_children() if "proj" in n or "embedding" in n
    }


@by_layer
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16), ids=str)
def test_equal_outputs_and_gradients(sample, dtype):
    python, cpp = pair(sample, dtype)
    near = {torch.float64: 1e-12, torch.float32: 1e-6}.get(dtype, 0.05)
    for length in (5, 9):
        results = []
        for module in (python, cpp):
            tensors = sample.tensors(dtype, length, requires_grad=True)
            out = sample.real_rows(module(**tensors), tensors)
            weight = torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(dtype)
            leaves = {n: tensors[n] for n in sample.differentiable if n in tensors}
            leaves.update(module.named_parameters())
            grads = torch.autograd.grad((out * weight).sum(), list(leaves.values()))
            results.append((out, dict(zip(leaves, grads, strict=True))))
        (out, grads), (other, others) = results
        if not sample.is_attention:
            assert_same(other, out)
        torch.testing.assert_close(other, out, rtol=near, atol=near)
        assert grads.keys() == others.keys()
        torch.testing.assert_close(others, grads, rtol=10 * near, atol=10 * near)


@by_kind
def test_positional_arguments_mean_the_same(sample):
    python, cpp = pair(sample)
    values = sample.tensors().values()
    torch.testing.assert_close(cpp(*values), python(*values), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ("RoPEAttention", "ALiBiAttention"))
def test_the_cache_is_the_same(name):
    torch.manual_seed(0)
    python = getattr(posenc, name)(16, 4, n_kv_heads=2, is_causal=True)
    cpp = getattr(posenc.cpp, name)(16, 4, n_kv_heads=2, is_causal=True)
    cpp.load_state_dict(python.state_dict())
    x = torch.randn(2, 7, 16)
    want = python(x)
    outs, cache = [], None
    for begin, end in ((0, 4), (4, 5), (5, 7)):
        out, cache = cpp.forward_cached(x[:, begin:end], cache)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 1), want, rtol=0, atol=1e-5)


@by_kind
def test_an_ordinary_module_inside_an_ordinary_model(sample):
    """state_dict of a parent, .to, copies, pickles see the C++ tensors, and copies are apart."""
    _, cpp = pair(sample)
    box = torch.nn.Sequential(cpp)
    tensors = sample.tensors()
    want = cpp(**tensors).detach()
    assert [n.removeprefix("0.") for n in box.state_dict()] == list(cpp.state_dict())
    buffer = io.BytesIO()
    torch.save(box, buffer)
    buffer.seek(0)
    for other in (
        copy.deepcopy(box),
        pickle.loads(pickle.dumps(box)),
        torch.load(buffer, weights_only=False),
    ):
        assert_same(other[0](**tensors).detach(), want)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(1)
        assert_same(cpp(**tensors).detach(), want)
        if sample.parameters:
            assert not torch.equal(other[0](**tensors), want), "the copy computes with old weights"
    double = copy.deepcopy(box).to("cpu").double()
    assert all(p.dtype == torch.float64 for p in double.parameters())
    wide = double[0](**sample.tensors(torch.float64))
    assert wide.dtype == torch.float64
    torch.testing.assert_close(wide.float(), want, rtol=0, atol=1e-5)
    half = copy.deepcopy(box).bfloat16()
    assert half[0](**sample.tensors(torch.bfloat16)).dtype == torch.bfloat16


@by_kind
def test_training_moves_both_alike(sample):
    """Three steps of AdamW on each: the same losses."""
    if not sample.parameters:
        pytest.skip("nothing to learn")
    losses = []
    for module in pair(sample):
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        history = []
        for _ in range(4):
            loss = (module(**sample.tensors()) - 1).square().mean()  # a turn keeps the square
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(loss.item())
        assert history[-1] < history[0]
        losses.append(history)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-6)


@by_kind
def test_train_and_eval_reach_the_cpp_module(sample):
    if not sample.is_attention:
        pytest.skip("no dropout")
    torch.manual_seed(0)
    cpp = getattr(posenc.cpp, sample.layer)(32, 4, dropout=0.5)
    x = torch.randn(2, 9, 32)
    cpp.eval()
    assert_same(cpp(x), cpp(x))
    cpp.train()
    assert not torch.equal(cpp(x), cpp(x))


OPTIONS_THAT_FAIL = (
    ("RotaryPositionalEmbedding", (5,), {}),
    ("RotaryPositionalEmbedding", (8,), {"rotary_dim": 3}),
    ("RotaryPositionalEmbedding", (8,), {"rotary_dim": 10}),
    ("RotaryPositionalEmbedding", (8,), {"base": 0.0}),
    ("RotaryPositionalEmbedding", (0,), {}),
    ("AxialRotaryEmbedding", (18,), {}),
    ("AxialRotaryEmbedding", (16, "spiral"), {}),
    ("AxialRotaryEmbedding", (16,), {"n_suffix": -1}),
    ("MixedRotaryEmbedding", (18, 2), {}),
    ("XPosRotaryEmbedding", (7,), {}),
    ("XPosRotaryEmbedding", (8,), {"scale_base": 0.0}),
    ("XPosRotaryEmbedding", (8,), {"gamma": -0.4}),
    ("XPosRotaryEmbedding", (8,), {"centre": float("nan")}),
    ("XPosRotaryEmbedding", (8,), {"rotary_dim": 10}),
    ("QueryTemperature", (), {"floor_scale": 0.0}),
    ("QueryTemperature", (), {"scale": float("inf")}),
    ("LearnedRotaryEmbedding", (7,), {}),
    ("LearnedRotaryEmbedding", (8,), {"n_heads": 0}),
    ("LearnedRotaryEmbedding", (8,), {"parametrisation": "linear"}),
    ("LearnedRotaryEmbedding", (8,), {"scaling": {"rope_type": "dynamic", "factor": 2.0}}),
    ("LongSequenceRoPE", (7,), {}),
    ("LongSequenceRoPE", (8,), {"chunk_size": 0}),
    ("SinusoidalPositionalEncoding", (0,), {}),
    ("LearnedPositionalEncoding", (0, 4), {}),
    ("TransformerEmbedding", (4, -1), {}),
    ("RoPEAttention", (10, 3), {}),
    ("RoPEAttention", (16, 4), {"n_kv_heads": 3}),
    ("ALiBiAttention", (10, 3), {}),
    ("ALiBiAttention", (16, 4), {"n_kv_heads": 3}),
    ("ALiBiAttention", (16, 4), {"dropout": 1.5}),
)


@pytest.mark.parametrize(("name", "arguments", "options"), OPTIONS_THAT_FAIL, ids=str)
def test_both_refuse_the_same_options(name, arguments, options):
    for package in (posenc, posenc.cpp):
        with pytest.raises(ValueError):
            getattr(package, name)(*arguments, **options)


def test_the_article_s_children():
    for name in ("RoPEAttention", "ALiBiAttention"):
        assert set(getattr(posenc.cpp, name)(16, 4).state_dict()) == set(ATTENTION_NAMES)
