"""The table of layers on a GPU: values, gradients, compiled, trained."""

import posenc
import pytest
import torch
from samples.compare import FLOATS
from samples.layers import LAYERS, PLAIN
from samples.running import moved

pytestmark = pytest.mark.cuda

by_layer = pytest.mark.parametrize("sample", LAYERS, ids=str)
by_kind = pytest.mark.parametrize("sample", PLAIN, ids=str)
DEVICE = "cuda"
NEAR = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}


def loss_of(sample, module, tensors):
    out = sample.real_rows(module(**tensors), tensors)
    weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape)
    return (out * weight.to(out)).sum()


def gradients(sample, module, tensors):
    leaves = dict(module.named_parameters())
    leaves.update({n: tensors[n] for n in sample.differentiable if n in tensors})
    return dict(
        zip(
            leaves,
            torch.autograd.grad(loss_of(sample, module, tensors), list(leaves.values())),
            strict=True,
        )
    )


@by_layer
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d)[6:])
def test_values_as_on_the_cpu(sample, dtype):
    """Against the layer in fp64 with the same rounded weights and inputs."""
    module, tensors = sample.build(dtype), sample.tensors(dtype, 9)
    wide = sample.build(dtype).double()
    doubled = {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}
    with torch.no_grad():
        want = sample.real_rows(wide(**doubled), doubled)
        there = moved(tensors, DEVICE)
        got = sample.real_rows(module.to(DEVICE)(**there), there)
    assert got.dtype == dtype and got.device.type == DEVICE
    size = max(1.0, want.abs().max().item())
    torch.testing.assert_close(got.double().cpu(), want, rtol=0, atol=NEAR[dtype] * size)


@by_layer
def test_gradients_as_on_the_cpu(sample):
    module, tensors = sample.build(torch.float64), sample.tensors(torch.float64, requires_grad=True)
    want = gradients(sample, module, tensors)
    got = gradients(sample, module.to(DEVICE), moved(tensors, DEVICE))
    for name, e in want.items():
        torch.testing.assert_close(got[name].cpu(), e, rtol=1e-8, atol=1e-9, msg=name)


@by_kind
def test_compiled(sample):
    module = sample.build(device=DEVICE)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    for length in (16, 17):
        tensors = moved(sample.tensors(length=length, requires_grad=True), DEVICE)
        torch.testing.assert_close(
            sample.real_rows(compiled(**tensors), tensors),
            sample.real_rows(module(**tensors), tensors),
            rtol=0,
            atol=5e-6,
        )


@pytest.mark.slow
def test_compiled_with_inductor_and_graphs():
    """One model through torch's own code generator, with CUDA graphs."""
    model = torch.nn.Sequential(
        posenc.SinusoidalPositionalEncoding(32),
        posenc.RoPEAttention(32, 4, is_causal=True),
        posenc.ALiBiAttention(32, 4, is_causal=True),
    ).to(DEVICE)
    compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(2, 64, 32, device=DEVICE)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x).clone(), model(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=lambda d: str(d)[6:])
def test_a_model_trains(dtype):
    torch.manual_seed(0)
    model = torch.nn.ModuleList(
        (
            posenc.TransformerEmbedding(20, 32),
            posenc.LearnedPositionalEncoding(16, 32),
            posenc.RoPEAttention(32, 4, is_causal=True),
            posenc.ALiBiAttention(32, 4, is_causal=True),
            torch.nn.Linear(32, 20),
        )
    ).to(DEVICE, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tokens = torch.randint(0, 20, (8, 17), device=DEVICE)
    losses = []
    for _ in range(60):
        x = tokens[:, :-1]
        for layer in model:
            x = layer(x)
        loss = torch.nn.functional.cross_entropy(x.float().flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
