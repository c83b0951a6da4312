"""The table of operator samples on a GPU, in every dtype: against the float64 reference and against
the CPU operator; gradients, layouts of memory, transforms."""

import pytest
import torch
from samples.compare import FLOATS, array, assert_near, assert_same, compute_unit, unit
from samples.operators import DIFFERENTIABLE, SAMPLES, skipped
from samples.running import LAYOUTS, gradients, moved, run_on
from torch.autograd import gradcheck, gradgradcheck

pytestmark = pytest.mark.cuda

by_sample = pytest.mark.parametrize("sample", SAMPLES, ids=str)
by_differentiable = pytest.mark.parametrize("sample", DIFFERENTIABLE, ids=str)
by_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d)[6:])
DEVICE = "cuda"


def on_device(sample, dtype, **options):
    return moved(sample.tensors(dtype, **options), DEVICE)


def outputs(sample, tensors, dtype=None):
    return run_on(sample, tensors, dtype, DEVICE)


def gradient_bounds(sample, dtype, expected, own_dtype):
    """(steps, magnitude, skipped) of a gradient's comparison, as in the tests of the CPU.

    A gradient may have a dtype of its own: that of fp64 frequencies, whose inputs are rounded.
    """
    rounded = 8 * unit(dtype) / compute_unit(own_dtype)
    size = max(1.0, expected.abs().max().item())
    return 8 * sample.op.steps + rounded, size, 4 * skipped(dtype) if sample.op.skips else 0.0


@by_sample
@by_dtype
def test_matches_reference_and_cpu(sample, dtype):
    tensors = sample.tensors(dtype)
    there = moved(tensors, DEVICE)
    before = {name: t.clone() for name, t in there.items()}
    out, cpu = outputs(sample, there, dtype), sample.run(tensors, dtype)
    for a, e in zip(out, cpu, strict=True):
        assert a.device.type == DEVICE
        assert (a.dtype, a.shape, a.stride()) == (e.dtype, e.shape, e.stride())
    back = [a.cpu() for a in out]
    sample.check(back, sample.expected(tensors), tensors, "against the reference")
    if dtype in (torch.float32, torch.float64):  # half types: two roundings may differ by one
        sample.check(back, [array(e) for e in cpu], tensors, "against the CPU")
    for name, t in there.items():
        assert torch.equal(t, before[name]), f"{name} was changed"


@by_sample
def test_twice_gives_the_same_bits(sample):
    there = on_device(sample, torch.float32)
    first = outputs(sample, there, torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        again = outputs(sample, there, torch.float32)
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same(again, first, str(sample))


@by_differentiable
@by_dtype
def test_gradient(sample, dtype):
    """That of fp64 on the CPU, of the same rounded numbers."""
    tensors = sample.tensors(dtype, requires_grad=True)
    wide = {
        name: (t.detach().double() if t.is_floating_point() else t).requires_grad_(t.requires_grad)
        for name, t in tensors.items()
    }
    got = gradients(sample, moved(tensors, DEVICE), dtype)
    again = gradients(sample, moved(tensors, DEVICE), dtype)
    want = gradients(sample, wide, torch.float64)
    for name, a, e, twice in zip(sample.differentiable, got, want, again, strict=True):
        assert a.dtype == tensors[name].dtype and a.device.type == DEVICE
        steps, size, lost = gradient_bounds(sample, dtype, e, a.dtype)
        if dtype == torch.float64:
            steps += 8 * sample.phase_steps(tensors)
        assert_near(a.cpu(), e, steps=steps, magnitude=size, skipped=lost, what=name)
        assert torch.equal(a, twice), f"{name}: another gradient in the second run"


@by_sample
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=lambda d: str(d)[6:])
def test_strides(sample, layout, dtype):
    """Any memory: within the same bound of the reference, and gradients as from plain memory."""
    plain = sample.tensors(dtype)
    odd = {name: layout(t) if t.dim() else t for name, t in moved(plain, DEVICE).items()}
    out = [a.cpu() for a in outputs(sample, odd, dtype)]
    sample.check(out, sample.expected(plain), plain, layout.__name__)
    if not sample.differentiable:
        return
    there = moved(plain, DEVICE)
    for tensors in (there, odd):
        for name in sample.differentiable:
            tensors[name].requires_grad_()
    pairs = zip(gradients(sample, odd, dtype), gradients(sample, there, dtype), strict=True)
    for name, (a, e) in zip(sample.differentiable, pairs, strict=True):
        steps, size, lost = gradient_bounds(sample, dtype, e, a.dtype)
        assert_near(a.cpu(), e.cpu(), steps=steps, magnitude=size, skipped=lost, what=name)


@by_differentiable
def test_gradcheck_and_gradgradcheck(sample):
    tensors = on_device(sample, torch.float64, requires_grad=True)
    inputs = [tensors[name] for name in sample.differentiable]

    def function(*values):
        given = {**tensors, **dict(zip(sample.differentiable, values, strict=True))}
        return tuple(torch.where(torch.isfinite(o), o, 0) for o in sample.run(given))

    assert gradcheck(function, inputs, fast_mode=True, check_forward_ad=True)
    assert gradgradcheck(function, inputs, fast_mode=True, gen_non_contig_grad_outputs=True)


@by_sample
def test_opcheck(sample):
    checks = (
        "test_schema",
        "test_autograd_registration",
        "test_faketensor",
        "test_aot_dispatch_dynamic",
    )
    tensors = on_device(sample, torch.float32, requires_grad=True)
    place = {} if tensors else {"device": DEVICE}
    result = torch.library.opcheck(
        sample.op.handle, (), {**tensors, **sample.options, **place}, test_utils=checks
    )
    assert set(result.values()) == {"SUCCESS"}, result


@by_differentiable
def test_vmap_is_a_loop(sample):
    several = [on_device(sample, torch.float32, seed=seed) for seed in (1, 2)]
    names = sample.differentiable

    def call(*values):
        return sample.run({**several[0], **dict(zip(names, values, strict=True))})

    stacked = [torch.stack([t[name] for t in several]) for name in names]
    loop = zip(*[call(*[t[name] for name in names]) for t in several], strict=True)
    for a, e in zip(torch.vmap(call)(*stacked), loop, strict=True):
        torch.testing.assert_close(a, torch.stack(e), rtol=1e-5, atol=1e-5)
