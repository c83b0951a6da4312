"""What surrounds a call: instruction sets, threads, processes, memory, imports."""

import os
import subprocess
import sys
from pathlib import Path

import posenc
import pytest
import torch
from samples.compare import FLOATS, assert_near, assert_same, compute_unit, unit
from samples.operators import OPERATORS, SAMPLES, skipped

HERE = Path(__file__).resolve().parent
ROOT = str(Path(posenc.__file__).resolve().parents[1])


def child(*command, **env):
    """A Python process of its own that finds this posenc; its output, once it has ended well."""
    path = os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
    run = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path, **env},
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


@pytest.fixture(scope="module")
def by_capability(tmp_path_factory):
    """{capability: {(sample, dtype): outputs}}, of as many instruction sets as this machine has."""
    found = {}
    for wanted in ("default", "avx2", "avx512"):
        path = tmp_path_factory.mktemp("isa") / "outputs.pt"
        name = child(HERE / "isa_child.py", path, ATEN_CPU_CAPABILITY=wanted).split()[-1]
        found[name] = torch.load(path)
    return found


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_every_instruction_set_matches_the_reference(by_capability, sample):
    for dtype in FLOATS:
        tensors = sample.tensors(dtype)
        want = sample.expected(tensors)
        for name, outputs in by_capability.items():
            sample.check(outputs[str(sample), str(dtype)][: len(want)], want, tensors, name)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_every_instruction_set_gives_one_rotation_and_one_encoding(by_capability, sample):
    """cos and sin are one pure function of (position, frequency) on every path: bit for bit."""
    if "alibi" in sample.op.name or "merge" in sample.op.name:
        pytest.skip("sums over keys have an order of their own in each instruction set")
    first, *others = by_capability.values()
    for outputs in others:
        for dtype in FLOATS:
            key = str(sample), str(dtype)
            assert_same(outputs[key][0], first[key][0], str(sample))


def test_gradients_of_every_instruction_set(by_capability):
    first, *others = by_capability.values()
    for outputs in others:
        for (name, dtype), values in outputs.items():
            for a, e in zip(values, first[name, dtype], strict=True):
                size = max(1.0, torch.where(torch.isfinite(e), e, 0).abs().max().item())
                near = 64 * compute_unit(getattr(torch, dtype.removeprefix("torch.")))
                if dtype in ("torch.bfloat16", "torch.float16"):
                    near = 2 * unit(a.dtype) if a.dtype != torch.float64 else 2**-8
                steps = near / compute_unit(a.dtype)
                # Which keys weigh too little is decided for a vector of rows at a time, so the sets
                # differ in what they leave out, each within its share.
                may_skip = OPERATORS[name.split("-")[0]].skips
                lost = 2 * skipped(getattr(torch, dtype.removeprefix("torch."))) if may_skip else 0
                assert_near(a, e, steps=steps, magnitude=size, skipped=lost, what=f"{name} {dtype}")


THREADS = """
import os, sys, torch, posenc
P = torch.ops.posenc
torch.set_num_threads(1)
x = torch.ones(8, 512, 8, 64)
calls = {
    "rotary_embedding": lambda: P.rotary_embedding(x, [0.5] * 32),
    "rotary_embedding_": lambda: P.rotary_embedding_(x, [0.5] * 32),
    "apply_rotary": lambda: P.apply_rotary(x, x[0, 0], x[0, 0], seq_dim=2, doubled=True),
    "add_sinusoidal": lambda: P.add_sinusoidal(x[:, :, 0], [0.5] * 32),
    "add_positions": lambda: P.add_positions(x[:, :, 0], x[0, :, 0]),
    "embed_tokens": lambda: P.embed_tokens(torch.ones(8, 512).long(), x[0, 0], [0.5] * 32),
    "alibi_softmax": lambda: P.alibi_softmax(x, [0.5] * 512),
    "alibi_attention": lambda: P.alibi_attention(x, x, x, [0.5] * 512),
}
for name, call in calls.items():
    if os.fork():
        os.wait()
        continue
    before = len(os.listdir("/proc/self/task"))
    torch.set_num_threads(2)
    call()
    print(name, len(os.listdir("/proc/self/task")) - before, flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc")
def test_loops_run_on_the_threads_that_torch_gives():
    """Without -fopenmp on its file, at::parallel_for runs serially and says nothing.

    Each operator runs in a fork of its own, where the second thread is born with its first loop.
    """
    lines = [line.split() for line in child("-c", THREADS).splitlines()]
    assert len(lines) == 8
    for name, born in lines:
        assert int(born) >= 1, f"{name} ran on one thread"


def test_two_processes_under_ddp(tmp_path):
    path = os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
    runs = [
        subprocess.Popen(
            [sys.executable, str(HERE / "ddp_child.py"), str(rank), str(tmp_path / "store")],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        for rank in range(2)
    ]
    for run in runs:
        _, errors = run.communicate(timeout=300)
        assert run.returncode == 0, errors[-2000:]


MEMORY = """
import resource, torch, posenc
import posenc.functional as P
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
L = 16384
q, k, v = (torch.randn(1, 2, L, 64, requires_grad=True) for _ in range(3))
def run(n):
    q_n, k_n, v_n = (t[:, :, :n] for t in (q, k, v))
    P.alibi_attention(q_n, k_n, v_n, [0.5, 0.01], is_causal=True).sum().backward()
run(256)
before = peak()
run(L)
print(peak() - before)
"""


def test_attention_needs_no_matrix_of_scores():
    """16384 tokens, 2 heads, forward and backward: two dense matrices would be 4 GB."""
    assert float(child("-c", MEMORY).split()[-1]) < 300


def test_outputs_are_made_once():
    """The rotation of a large input allocates its output and little more."""
    from torch.profiler import ProfilerActivity, profile

    x = torch.randn(4, 256, 8, 64)
    for op in (
        lambda: torch.ops.posenc.rotary_embedding(x, [0.5] * 32),
        lambda: torch.ops.posenc.add_sinusoidal(x[:, :, 0], [0.5] * 32),
    ):
        want = op()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
            op()
        made = sum(
            e.self_cpu_memory_usage for e in prof.key_averages() if e.self_cpu_memory_usage > 0
        )
        assert made < 1.25 * want.nbytes + 65536, f"{made} bytes for an output of {want.nbytes}"


def test_the_compile_cache_knows_this_build():
    assert "posenc" in torch.compiler.config.cache_key_tag


def test_every_operator_has_the_kernels_that_the_design_asks_for():
    for name, op in OPERATORS.items():
        if torch._C._dispatch_has_kernel_for_dispatch_key(
            f"posenc::{name}", "CompositeImplicitAutograd"
        ):
            continue
        for key in ("CPU", "Meta", "FuncTorchBatched", "CompositeExplicitAutograd"):
            if key == "FuncTorchBatched" and not op.differentiable:
                continue
            has = torch._C._dispatch_has_kernel_for_dispatch_key(f"posenc::{name}", key)
            assert has, f"posenc::{name} has no {key} kernel"
        if op.differentiable:
            has = torch._C._dispatch_has_kernel_for_dispatch_key(f"posenc::{name}", "Autograd")
            assert has, f"posenc::{name} has no Autograd kernel"


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.shapes][::4], ids=str)
def test_a_process_survives_every_error(sample):
    """A wrong dtype, rank or device is an error of Python, after which the same process works."""
    tensors = sample.tensors(torch.float32)
    want = sample.run(tensors)
    kinds = (TypeError, ValueError, IndexError, RuntimeError, NotImplementedError)
    if sample.op.base != "convert_rope_weights":  # it moves rows of any dtype
        with pytest.raises((TypeError, ValueError)):
            sample.run({n: t.bool() for n, t in tensors.items()})
    scalars = {n: t.flatten()[0] for n, t in tensors.items()}
    if sample.op.base != "sinusoidal_encoding":  # it takes positions of any rank
        with pytest.raises(kinds):
            sample.run(scalars)
    if len(tensors) > 1:
        with pytest.raises(kinds):
            sample.run({n: t.to("meta") if i else t for i, (n, t) in enumerate(tensors.items())})
    assert_same(sample.run(tensors), want)


def test_a_torch_without_cuda_is_named_at_import():
    """A library with CUDA kernels cannot be loaded by a CPU-only torch: that is said in words."""
    code = """
import sys, types, torch
info = types.ModuleType("posenc._build_info")
info.VERSION, info.TORCH_VERSION, info.CUDA = "0", torch.__version__, True
sys.modules["posenc._build_info"] = info
torch.version.cuda = None
try:
    import posenc
except ImportError as error:
    print(error)
"""
    out = child("-c", code)
    assert "was built with CUDA kernels" in out and "a build without CUDA" in out, out
