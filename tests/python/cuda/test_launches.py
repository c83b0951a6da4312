"""How the kernels run: graphs, streams, devices, no synchronisation, large tensors, errors."""

import subprocess
import sys

import posenc.functional as P
import pytest
import reference
import torch
from samples.compare import assert_same
from samples.operators import SAMPLES
from samples.running import moved, run_on

pytestmark = pytest.mark.cuda

by_sample = pytest.mark.parametrize("sample", SAMPLES, ids=str)
DEVICE = "cuda"


def forward_and_backward(sample, tensors):
    """Outputs and, where there are any, gradients of their sum."""
    out = run_on(sample, tensors, torch.float32, DEVICE)
    leaves = [tensors[name] for name in sample.differentiable]
    if not leaves:
        return tuple(out)
    finite = [torch.where(torch.isfinite(o), o, 0).sum() for o in out]
    return (*out, *torch.autograd.grad(sum(finite), leaves))


@by_sample
def test_cuda_graph(sample):
    """Captured once, replayed with other numbers: the same bits as an ordinary call."""
    tensors = moved(sample.tensors(torch.float32, requires_grad=True), DEVICE)
    other = moved(sample.tensors(torch.float32, requires_grad=True, seed=1), DEVICE)
    want = forward_and_backward(sample, other)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            forward_and_backward(sample, tensors)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = forward_and_backward(sample, tensors)
    with torch.no_grad():
        for name, t in tensors.items():
            t.copy_(other[name])
    graph.replay()
    torch.cuda.synchronize()
    assert_same(captured, want, str(sample))


@by_sample
def test_nothing_waits_for_the_device(sample):
    tensors = moved(sample.tensors(torch.float32, requires_grad=True), DEVICE)
    forward_and_backward(sample, tensors)  # libraries make their workspaces
    torch.cuda.synchronize()
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        forward_and_backward(sample, tensors)
    finally:
        torch.cuda.set_sync_debug_mode(mode)


@by_sample
def test_the_current_stream(sample):
    """Work that waits on a side stream for its input sees it."""
    tensors = moved(sample.tensors(torch.float32), DEVICE)
    if not tensors:
        pytest.skip("no input to wait for")
    want = run_on(sample, tensors, torch.float32)
    late = {name: torch.zeros_like(t) for name, t in tensors.items()}
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        for name, t in tensors.items():
            late[name].copy_(t)
        out = run_on(sample, late, torch.float32)
    stream.synchronize()
    assert_same(out, want, str(sample))


@by_sample
def test_a_device_that_is_not_the_current_one(sample):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    tensors = moved(sample.tensors(torch.float32), "cuda:1")
    with torch.cuda.device(0):
        out = run_on(sample, tensors, torch.float32, "cuda:1")
    assert all(o.device == torch.device("cuda:1") for o in out)
    want = run_on(sample, moved(tensors, "cuda:0"), torch.float32, "cuda:0")
    assert_same([o.cpu() for o in out], [w.cpu() for w in want], str(sample))


CHILD = """
import posenc.functional as P, torch
weight, x = torch.zeros(8, 4, device="cuda"), torch.zeros(1, 2, 4, device="cuda")
outside = torch.tensor([[0, {row}]], device="cuda")
{call}
torch.cuda.synchronize()
"""


@pytest.mark.parametrize("row", (8, -1, 2**40))
@pytest.mark.parametrize(
    ("operator", "call"),
    (
        ("add_positions", "P.add_positions(x, weight, outside)"),
        (
            "_add_positions_backward",
            "torch.ops.posenc._add_positions_backward(x, 8, outside, 0, 1)",
        ),
        ("embed_tokens", "P.embed_tokens(outside, weight, [1.0, 0.5])"),
    ),
)
def test_a_row_outside_the_table_stops_the_kernel_by_name(row, operator, call):
    """In a process of its own: a stopped kernel ends all CUDA work of its process."""
    code = CHILD.format(row=row, call=call)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert run.returncode != 0
    assert f"{operator}: expected" in run.stderr, run.stderr[-2000:]


def far_positions(count):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(2**23, 2**24 + 1, (count,), generator=generator)


def test_angles_are_exact_up_to_two_to_the_24():
    ids, f = far_positions(500), reference.rope_inv_freq(64)
    phase = ids.double()[:, None] * torch.tensor(f, dtype=torch.float64)
    got = P.sinusoidal_encoding(ids.to(DEVICE), f, 64, dtype=torch.float32).cpu()
    want = torch.stack((phase.sin(), phase.cos()), -1).flatten(-2)
    assert (got - want).abs().max() < 1e-6
    x = torch.zeros(1, 500, 1, 64)
    x[..., ::2] = 1.0
    turned = P.rotary_embedding(x.to(DEVICE), f, ids[None].to(DEVICE)).cpu()[0, :, 0]
    want = torch.stack((phase.cos(), phase.sin()), -1).flatten(-2)
    assert (turned - want).abs().max() < 1e-6


def free_memory():
    return torch.cuda.mem_get_info()[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ("rotary", "sinusoidal", "learned", "softmax"))
def test_more_than_two_to_the_31_elements(name):
    """The last rows of a tensor whose offsets need 64 bits, against the same rows alone."""
    need = 10 * 2**30 if name != "softmax" else 12 * 2**30
    if free_memory() < need:
        pytest.skip(f"needs {need / 2**30:.0f} GiB of free GPU memory")
    if name == "softmax":
        scores = torch.zeros(1, 2, 33000, 33000, dtype=torch.bfloat16, device=DEVICE)
        scores[0, 1, -1].normal_()
        out = P.alibi_softmax(scores, [0.5, 0.001], is_causal=True)[0, 1, -1:]
        want = P.alibi_softmax(scores[:, 1:, -1:], [0.001], is_causal=True)[0, 0]
        torch.testing.assert_close(out, want, rtol=0, atol=0)
        assert want.float().sum().sub(1).abs() < 0.02
        return
    rows, width = 2**31 // 4096 + 7, 4096
    x = torch.zeros(1, rows, width, dtype=torch.bfloat16, device=DEVICE)
    x[0, -1].normal_()
    f, last = reference.sinusoidal_inv_freq(width), x[:, -1:]
    if name == "rotary":
        out = P.rotary_embedding_(x.clone().unsqueeze(2), f)[:, -1:, 0]
        want = P.rotary_embedding(last.unsqueeze(2), f, offset=rows - 1)[:, :, 0]
    elif name == "sinusoidal":
        out = P.add_sinusoidal(x, f)[:, -1:]
        want = P.add_sinusoidal(last, f, offset=rows - 1)
    else:
        ids = torch.arange(rows, device=DEVICE) % 5
        weight = torch.randn(5, width, dtype=torch.bfloat16, device=DEVICE)
        out = P.add_positions(x, weight, ids)[:, -1:]
        want = P.add_positions(last, weight, ids[-1:])
    torch.testing.assert_close(out, want, rtol=0, atol=0)


@pytest.mark.parametrize("train", (False, True), ids=("forward", "backward"))
def test_attention_needs_memory_of_the_order_of_the_length(train):
    """Twice the length, twice the memory: no L x S tensor anywhere."""
    peaks = []
    for length in (4096, 8192):
        q, k, v = (
            torch.randn(1, 2, length, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=train)
            for _ in range(3)
        )
        slopes = list(P.alibi_slopes(2))
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = P.alibi_attention(q, k, v, slopes, is_causal=True)
        if train:
            out.float().sum().backward()
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        del q, k, v, out
    assert peaks[1] < 2.5 * peaks[0]
    assert peaks[1] < 64 * 2**20


def test_autocast():
    q, k, v = (torch.randn(1, 2, 9, 16, device=DEVICE) for _ in range(3))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = P.alibi_attention(q, k, v, [0.5, 0.25], is_causal=True)
    assert out.dtype == torch.bfloat16
    want = P.alibi_attention(q, k, v, [0.5, 0.25], is_causal=True)
    torch.testing.assert_close(out.float(), want, rtol=0, atol=0.05)
