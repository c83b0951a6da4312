"""Every operator sample against the float64 reference, in every dtype, stride and derivative."""

import pytest
import torch
from samples.compare import (
    FLOATS,
    assert_near,
    assert_same,
    compute_unit,
    needs_torchscript,
    tensors_of,
    unit,
)
from samples.operators import DIFFERENTIABLE, OPERATORS, ROTATED, SAMPLES, skipped
from samples.running import LAYOUTS, gradients, reversed_memory
from torch.autograd import gradcheck, gradgradcheck

by_sample = pytest.mark.parametrize("sample", SAMPLES, ids=str)
by_differentiable = pytest.mark.parametrize("sample", DIFFERENTIABLE, ids=str)


def function_of(sample, tensors, names):
    """The sample as a function of the tensors in `names`, without what is infinite."""

    def function(*values):
        outputs = sample.run({**tensors, **dict(zip(names, values, strict=True))}, torch.float64)
        return tuple(torch.where(torch.isfinite(o), o, 0) for o in outputs)

    return function


@by_sample
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d)[6:])
def test_matches_reference(sample, dtype):
    tensors = sample.tensors(dtype)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    out = sample.run(tensors, dtype)
    assert out[0].dtype == dtype
    sample.check(out, sample.expected(tensors), tensors, "value")
    for name, tensor in tensors.items():
        assert torch.equal(tensor, before[name]), f"{name} was changed"


@by_differentiable
@pytest.mark.parametrize("dtype", FLOATS[1:], ids=lambda d: str(d)[6:])
def test_gradient_in_each_dtype(sample, dtype):
    """The gradient in fp32, bf16 and fp16 is that in fp64 of the same rounded numbers."""
    tensors = sample.tensors(dtype, requires_grad=True)
    wide = {
        name: (t.detach().double() if t.is_floating_point() else t).requires_grad_(t.requires_grad)
        for name, t in tensors.items()
    }
    got, want = gradients(sample, tensors, dtype), gradients(sample, wide, torch.float64)
    for name, a, e in zip(sample.differentiable, got, want, strict=True):
        assert a.dtype == tensors[name].dtype, f"gradient of {name} is {a.dtype}"
        # Upstream weights and, in attention, the saved output are rounded to dtype as well.
        rounded = 8 * unit(dtype) / compute_unit(a.dtype)
        size = max(1.0, e.abs().max().item())
        lost = 4 * skipped(dtype) if sample.op.skips else 0.0
        assert_near(
            a, e, steps=8 * sample.op.steps + rounded, magnitude=size, skipped=lost, what=name
        )


@by_sample
def test_meta_has_the_same_shape_dtype_and_strides(sample):
    for dtype in (torch.float32, torch.bfloat16):
        for layout in (lambda t: t, reversed_memory):
            tensors = {name: layout(t) for name, t in sample.tensors(dtype).items()}
            real = sample.run(tensors, dtype)
            if not tensors:
                continue
            meta = sample.run({name: t.to("meta") for name, t in tensors.items()}, dtype)
            for r, m in zip(real, meta, strict=True):
                assert m.device.type == "meta"
                assert (r.shape, r.dtype, r.stride()) == (m.shape, m.dtype, m.stride())


@by_sample
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=lambda d: str(d)[6:])
def test_strides_change_no_bit(sample, layout, dtype):
    plain = sample.tensors(dtype)
    odd = {name: layout(t) if t.dim() else t for name, t in plain.items()}
    assert_same(sample.run(odd, dtype), sample.run(plain, dtype), "value")
    if not sample.differentiable:
        return
    for tensors in (plain, odd):
        for name in sample.differentiable:
            tensors[name].requires_grad_()
    got, want = gradients(sample, odd, dtype), gradients(sample, plain, dtype)
    if sample.op.base == "merge_attention":  # plain ATen calls, whose sums follow the strides
        torch.testing.assert_close(got, want)
    else:
        assert_same(got, want, "gradient")


@by_differentiable
@pytest.mark.parametrize("axis", (0, 1))
def test_expanded_inputs_change_no_bit(sample, axis):
    """A stride of 0 along one axis of every large input, and upstream gradients of stride 0."""
    results = []
    for expand in (True, False):
        tensors = sample.tensors(torch.float32)
        for name in sample.differentiable:
            t = tensors[name]
            if t.dim() < 3:
                continue
            small = t.narrow(axis, 0, 1)
            tensors[name] = small.expand(t.shape) if expand else small.expand(t.shape).contiguous()
        for name in sample.differentiable:
            tensors[name].requires_grad_()
        out = sample.run(tensors, torch.float32)
        loss = sum(torch.where(torch.isfinite(o), o, 0).sum() for o in out)
        first = out[0].sum()
        assert first.dim() == 0
        grads = torch.autograd.grad(
            loss, [tensors[n] for n in sample.differentiable], retain_graph=True
        )
        # .sum() hands down a gradient that is one number expanded.
        plain = torch.autograd.grad(
            first, [tensors[n] for n in sample.differentiable], allow_unused=True
        )
        results.append((*out, *grads, *[g for g in plain if g is not None]))
    assert_same(*results, str(sample))


@by_differentiable
def test_gradcheck(sample):
    """Backward and forward mode against finite differences, alone and under vmap."""
    tensors = sample.tensors(requires_grad=True)
    inputs = [tensors[name] for name in sample.differentiable]
    function = function_of(sample, tensors, sample.differentiable)
    assert gradcheck(
        function,
        inputs,
        fast_mode=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        check_forward_ad=True,
    )


@pytest.mark.parametrize("sample", [s for s in DIFFERENTIABLE if not s.large][::4], ids=str)
def test_gradcheck_of_every_entry(sample):
    """The whole Jacobian, where the one above tries a random direction."""
    tensors = sample.tensors(requires_grad=True)
    inputs = [tensors[name] for name in sample.differentiable]
    function = function_of(sample, tensors, sample.differentiable)
    assert gradcheck(function, inputs, check_forward_ad=True)


@by_differentiable
def test_gradgradcheck(sample):
    tensors = sample.tensors(requires_grad=True)
    inputs = [tensors[name] for name in sample.differentiable]
    function = function_of(sample, tensors, sample.differentiable)
    assert gradgradcheck(function, inputs, fast_mode=True, gen_non_contig_grad_outputs=True)


@by_differentiable
def test_only_the_asked_gradient(sample):
    """With one input at a time asking for its gradient, that gradient is the same."""
    together = gradients(sample, sample.tensors(requires_grad=True), torch.float64)
    for number, name in enumerate(sample.differentiable):
        tensors = sample.tensors()
        tensors[name].requires_grad_()
        loss = torch.zeros((), dtype=torch.float64)
        generator = torch.Generator().manual_seed(5)
        for out in sample.run(tensors, torch.float64):
            weight = torch.randn(out.shape, generator=generator, dtype=torch.float64)
            loss = loss + (torch.where(torch.isfinite(out), out, 0) * weight).sum()
        torch.testing.assert_close(
            torch.autograd.grad(loss, tensors[name])[0], together[number], rtol=1e-12, atol=1e-12
        )


@by_differentiable
def test_vmap_is_a_loop(sample):
    names = sample.differentiable
    several = [sample.tensors(seed=seed) for seed in (1, 2, 3)]
    near = 1e-12 + sample.phase_steps(several[0]) * 2**-53
    loop = [sample.run(t, torch.float64) for t in several]
    want = tuple(torch.stack(outs) for outs in zip(*loop, strict=True))
    rest = several[0]

    def call(*values):
        return sample.run({**rest, **dict(zip(names, values, strict=True))}, torch.float64)

    stacked = [torch.stack([t[name] for t in several]) for name in names]
    got = torch.vmap(call)(*stacked)
    for a, e in zip(got, want, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-12, atol=near)
    # One batched argument beside plain ones, along another axis.
    first = torch.vmap(lambda v: call(v, *[rest[n] for n in names[1:]]), in_dims=-1)(
        stacked[0].movedim(0, -1)
    )
    for number, a in enumerate(first):
        e = torch.stack(
            [sample.run({**rest, names[0]: t[names[0]]}, torch.float64)[number] for t in several]
        )
        torch.testing.assert_close(a, e, rtol=1e-12, atol=near)


@by_differentiable
def test_functional_transforms(sample):
    """func.grad, vjp, jvp and per-sample gradients agree with autograd."""
    names = sample.differentiable
    tensors = sample.tensors()
    values = tuple(tensors[name] for name in names)
    everything = tuple(range(len(values)))
    function = function_of(sample, tensors, names)

    def loss(*v):
        return sum((o**2).sum() for o in function(*v))

    leaves = [v.clone().requires_grad_() for v in values]
    want = torch.autograd.grad(loss(*leaves), leaves)
    got = torch.func.grad(loss, argnums=everything)(*values)
    for a, e in zip(got, want, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-9, atol=1e-11)
    finite = tuple(torch.where(torch.isfinite(v), torch.ones_like(v), 0) for v in values)
    _, slope = torch.func.jvp(loss, values, finite)
    along = sum((w * f).sum() for w, f in zip(want, finite, strict=True))
    torch.testing.assert_close(slope, along, rtol=1e-9, atol=1e-10)
    batch = tuple(torch.stack((v, v)) for v in values)
    for a, e in zip(
        torch.vmap(torch.func.grad(loss, argnums=everything))(*batch), want, strict=True
    ):
        torch.testing.assert_close(a[0], e, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(a[1], e, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("sample", [s for s in DIFFERENTIABLE if not s.large][::3], ids=str)
def test_jacobians_agree(sample):
    tensors = sample.tensors()
    name = sample.differentiable[0]
    function = function_of(sample, tensors, [name])
    backward = torch.func.jacrev(function)(tensors[name])
    forward = torch.func.jacfwd(function)(tensors[name])
    for b, f in zip(backward, forward, strict=True):
        torch.testing.assert_close(b, f, rtol=1e-9, atol=1e-11)


CHECKS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)


@by_sample
def test_opcheck(sample):
    tensors = sample.tensors(torch.float32, requires_grad=True)
    result = torch.library.opcheck(
        sample.op.handle, (), {**tensors, **sample.options}, test_utils=CHECKS
    )
    assert set(result.values()) == {"SUCCESS"}, result


def test_every_operator_has_samples_and_a_tag():
    covered = {sample.op.name for sample in SAMPLES}
    assert covered == set(OPERATORS)
    for op in OPERATORS.values():
        assert torch.Tag.pt2_compliant_tag in op.handle.tags, op.name


@pytest.mark.parametrize("sample", DIFFERENTIABLE[::6], ids=str)
def test_compiled_autograd(sample):
    """The C++ Functions are traceable: a compiled backward gives the same numbers."""
    want = gradients(sample, sample.tensors(requires_grad=True), torch.float64)
    tensors = sample.tensors(requires_grad=True)
    compiler = torch.compile(backend="eager", fullgraph=True)
    with torch._dynamo.compiled_autograd._enable(compiler):
        got = gradients(sample, tensors, torch.float64)
    for a, e in zip(got, want, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-12)


@needs_torchscript
@by_sample
def test_a_trace_holds_the_numbers(sample):
    """Tracers do not see what is written into memory behind their back: lists of frequencies."""
    anchor = torch.zeros(1)  # a trace has an input
    devices = ({}, {"device": torch.device("cpu")}) if sample.op.name == "alibi_bias" else ({},)
    for device in devices:
        tensors = sample.tensors(torch.float32)

        def function(anchor, *values, names=tuple(tensors), device=device):
            inputs = dict(zip(names, values, strict=True))
            return tuple(
                o + anchor for o in tensors_of(sample.op(**inputs, **sample.options, **device))
            )

        traced = torch.jit.trace(function, (anchor, *tensors.values()), check_trace=False)
        other = sample.tensors(torch.float32, seed=1).values()
        torch.full((64,), 1e9)  # what freed memory would hold
        assert_same(traced(anchor, *other), function(anchor, *other), str(sample))


@by_differentiable
def test_no_gradient_is_recorded_without_need(sample):
    tensors = sample.tensors(torch.float32, requires_grad=True)
    with torch.no_grad():
        assert all(o.grad_fn is None for o in sample.run(tensors, torch.float32))
    assert all(not o.requires_grad for o in sample.run(sample.tensors(torch.float32)))
    with torch.inference_mode():
        frozen = sample.run(sample.tensors(torch.float32), torch.float32)
    assert_same(frozen, sample.run(sample.tensors(torch.float32), torch.float32))


@by_sample
def test_thread_count_changes_no_bit(sample):
    tensors = sample.tensors(torch.float32)
    torch.set_num_threads(1)
    one = sample.run(tensors)
    torch.set_num_threads(3)
    assert_same(sample.run(tensors), one, str(sample))


@by_sample
def test_an_empty_batch_passes(sample):
    """No rows, no work, no error: forward and backward."""
    if not sample.shapes or not sample.op.batched:
        pytest.skip("no batch axis")
    if sample.case in ("row", "rank2") or str(sample) == "sinusoidal_encoding-pairs":
        pytest.skip("one row, no batch axis")
    tensors = {}
    for name, t in sample.tensors(torch.float32).items():
        of_axes = sample.op.base in ("axial_rotary_embedding", "mixed_rotary_embedding")
        if of_axes and (name == "freqs" or (name == "position_ids" and t.dim() == 2)):
            tensors[name] = t
            continue
        second = name in ROTATED and sample.options.get("seq_dim", 1) == 0
        axis = t.dim() - 2 if name == "position_ids" else int(second)
        vector = t.dim() < 2 and name != "delta"
        one_for_all = name == "weight" or vector or (name in ("cos", "sin") and t.dim() == 2)
        shared = name not in (*ROTATED, "v", "scores") and t.shape[axis] == 1
        tensors[name] = t if one_for_all or shared else t.narrow(axis, 0, 0)
    for name in sample.differentiable:
        tensors[name] = tensors[name].clone().requires_grad_()
    out = sample.run(tensors)
    assert all(o.numel() == 0 for o in out)
    if sample.differentiable:
        sum(o.sum() for o in out).backward()
        for name in sample.differentiable:
            assert tensors[name].grad.shape == tensors[name].shape
            assert not tensors[name].grad.any()
