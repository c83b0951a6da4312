"""Every layer of the table: values, dtypes, state, copies, and all the ways to run a module."""

import copy
import io
import pickle
import threading

import posenc
import pytest
import torch
import torch._dynamo.testing
from samples.compare import (
    FLOATS,
    array,
    assert_near,
    assert_same,
    compute_unit,
    needs_torchscript,
    unit,
)
from samples.layers import LAYERS, PLAIN
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

by_layer = pytest.mark.parametrize("sample", LAYERS, ids=str)
by_kind = pytest.mark.parametrize("sample", PLAIN, ids=str)
MATH = SDPBackend.MATH


def steps(sample, dtype):
    """Roundings inside: attention rounds q, k, v and the heads' output to the module's dtype."""
    if not sample.is_attention:
        return 6
    return 64 if dtype in (torch.float32, torch.float64) else 12 * unit(dtype) / compute_unit(dtype)


def check(sample, module, tensors, out):
    want = sample.expected(module, tensors)
    keep = tensors.get("key_padding_mask")
    if keep is not None:
        out, want = out[keep], want[array(keep)]
    size = max([1.0, abs(want).max()] + [t.abs().max().item() for t in floats(tensors)])
    inside = steps(sample, out.dtype)
    if out.dtype == torch.float64 and "position_ids" in tensors:
        inside += 2 * tensors["position_ids"].max().item()  # a product of that size is the phase
    assert_near(out, want, steps=inside, magnitude=size * 1.5, what=str(sample))


def floats(tensors):
    return [t.detach() for t in tensors.values() if t.is_floating_point()]


def run(sample, module, tensors):
    """The rows of real tokens of a forward pass."""
    return sample.real_rows(module(**tensors), tensors)


def loss_of(sample, module, tensors):
    out = run(sample, module, tensors)
    weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape)
    return (out * weight.to(out.dtype)).sum()


def gradients(sample, module, tensors):
    """{name: gradient} of every parameter and differentiable input."""
    leaves = dict(module.named_parameters())
    leaves.update({n: tensors[n] for n in sample.differentiable if n in tensors})
    grads = torch.autograd.grad(loss_of(sample, module, tensors), list(leaves.values()))
    return dict(zip(leaves, grads, strict=True))


def assert_gradients_near(got, want, rtol=1e-5, atol=1e-6):
    assert got.keys() == want.keys()
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol)


@by_layer
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d)[6:])
def test_matches_reference(sample, dtype):
    module = sample.build(dtype)
    for length in (5, 1, 9):
        tensors = sample.tensors(dtype, length)
        with torch.no_grad():
            out = module(**tensors)
        assert out.dtype == dtype
        check(sample, module, tensors, out)


@by_layer
def test_state_holds_learned_tensors_only(sample):
    module = sample.build()
    assert set(module.state_dict()) == set(sample.parameters)
    assert {name for name, _ in module.named_parameters()} == set(sample.parameters)
    assert not list(module.buffers())
    module(**sample.tensors())
    assert set(module.state_dict()) == set(sample.parameters), "a forward pass left something"
    tensors = [v for m in module.modules() for v in vars(m).values() if isinstance(v, torch.Tensor)]
    assert not tensors, "a tensor hides among the attributes"


@by_layer
def test_gradcheck(sample):
    """Of the input, and of every parameter."""
    module = sample.build(torch.float64)
    tensors = sample.tensors(torch.float64, 4, requires_grad=True)
    names = [n for n in sample.differentiable if n in tensors]
    inputs = [tensors[n] for n in names]
    parameters = dict(module.named_parameters())

    def function(*values):
        given = {**tensors, **dict(zip(names, values[: len(names)], strict=True))}
        weights = dict(zip(parameters, values[len(names) :], strict=True))
        out = torch.func.functional_call(module, weights, (), given)
        return sample.real_rows(out, given)

    leaves = (*inputs, *parameters.values())
    assert gradcheck(function, leaves, fast_mode=True)
    if inputs and not sample.is_attention:
        assert gradcheck(lambda *v: function(*v, *parameters.values()), inputs)
    with sdpa_kernel(MATH):
        assert gradgradcheck(function, leaves, fast_mode=True)


@by_layer
def test_the_same_gradient_in_fp32_as_in_fp64(sample):
    module, tensors = sample.build(), sample.tensors(requires_grad=True)
    got = gradients(sample, module, tensors)
    wide = copy.deepcopy(module).double()
    doubled = {
        n: (t.detach().double() if t.is_floating_point() else t).requires_grad_(t.requires_grad)
        for n, t in tensors.items()
    }
    want = gradients(sample, wide, doubled)
    assert_gradients_near({n: g.double() for n, g in got.items()}, want, rtol=2e-5, atol=2e-5)


@needs_torchscript
@by_layer
def test_script_save_and_load(sample):
    module, tensors = sample.build(), sample.tensors(requires_grad=True)
    want, grads = run(sample, module, tensors), gradients(sample, module, tensors)
    scripted = torch.jit.script(module)
    buffer = io.BytesIO()
    torch.jit.save(scripted, buffer)
    buffer.seek(0)
    for each in (scripted, torch.jit.load(buffer)):
        for _ in range(3):  # the profiling executor specialises in the second call
            torch.testing.assert_close(run(sample, each, tensors), want, rtol=0, atol=1e-6)
        assert_gradients_near(gradients(sample, each, tensors), grads)
        longer = sample.tensors(length=11)
        torch.testing.assert_close(
            run(sample, each, longer), run(sample, module, longer), rtol=0, atol=1e-6
        )
        if sample.keeps_float32:  # a scripted module casts every parameter
            continue
        half = copy.deepcopy(each).to(torch.bfloat16)
        small = sample.tensors(torch.bfloat16)
        assert half(**small).dtype == torch.bfloat16


@needs_torchscript
@by_layer
def test_trace_at_another_length(sample):
    if "mask" in str(sample.case) or sample.case in ("bias",):
        pytest.skip("the mask itself has the length")
    module = sample.build().eval()
    tensors = sample.tensors(length=4)
    traced = torch.jit.trace(module, example_kwarg_inputs=tensors, check_trace=False)
    buffer = io.BytesIO()
    torch.jit.save(traced, buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    for length in (9, 2):
        other = sample.tensors(length=length, seed=1)
        want = run(sample, module, other)
        torch.testing.assert_close(run(sample, traced, other), want, rtol=0, atol=1e-6)
        torch.testing.assert_close(run(sample, loaded, other), want, rtol=0, atol=1e-6)


@by_layer
def test_compile_without_a_break_at_any_length(sample):
    """fullgraph on the very first call; at most two compilations, forward and backward."""
    module = sample.build()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, backend=counter, fullgraph=True)
    for length in (16, 17, 32):
        tensors = sample.tensors(length=length, requires_grad=True)
        torch.testing.assert_close(
            run(sample, compiled, tensors), run(sample, module, tensors), rtol=0, atol=2e-6
        )
    grads = gradients(sample, module, tensors)
    got = {n.removeprefix("_orig_mod."): g for n, g in gradients(sample, compiled, tensors).items()}
    assert_gradients_near(got, grads)
    assert counter.frame_count <= 2, f"{counter.frame_count} compilations"


@pytest.mark.slow
def test_compile_with_inductor():
    """One model with an added encoding and attention through torch's own code generator."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        posenc.SinusoidalPositionalEncoding(16), posenc.ALiBiAttention(16, 2, is_causal=True)
    )
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for length in (5, 8):
        x = torch.randn(1, length, 16)
        torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=2e-6)
    grads = [
        torch.autograd.grad(m(x).square().sum(), list(m.parameters())) for m in (compiled, model)
    ]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


@by_layer
def test_export_with_a_dynamic_length(sample):
    module = sample.build().eval()
    short, long = sample.tensors(length=6), sample.tensors(length=13)
    length = torch.export.Dim("length", min=2, max=40)
    shapes = {
        name: {
            axis: length
            for axis, (a, b) in enumerate(zip(t.shape, long[name].shape, strict=True))
            if a != b
        }
        for name, t in short.items()
    }
    program = torch.export.export(module, (), short, dynamic_shapes=shapes)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    for each in (program, torch.export.load(buffer)):
        for tensors in (short, long):
            torch.testing.assert_close(
                run(sample, each.module(), tensors), run(sample, module, tensors), rtol=0, atol=1e-6
            )
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            assert not value.is_complex()


@by_layer
def test_functional_transforms(sample):
    """func.grad over parameters, per-sample gradients, vmap over the batch, jvp."""
    module = sample.build(torch.float64)
    tensors = sample.tensors(torch.float64)
    parameters = {n: p.detach() for n, p in module.named_parameters()}

    def loss(weights, given):
        out = torch.func.functional_call(module, weights, (), given)
        return (sample.real_rows(out, given) ** 2).sum()

    if parameters:
        got = torch.func.grad(loss)(parameters, tensors)
        want = torch.autograd.grad(
            loss(dict(module.named_parameters()), tensors), list(module.parameters())
        )
        assert_gradients_near(got, dict(zip(parameters, want, strict=True)), 1e-9, 1e-10)
    if "x" not in tensors:
        return
    x = tensors["x"]

    def at(value):
        return loss(parameters, {**tensors, "x": value})

    leaf = x.clone().requires_grad_()
    want = torch.autograd.grad(at(leaf), leaf)[0]
    torch.testing.assert_close(torch.func.grad(at)(x), want, rtol=1e-9, atol=1e-10)
    tangent = torch.randn_like(x)
    with sdpa_kernel(MATH):
        _, slope = torch.func.jvp(at, (x,), (tangent,))
        torch.testing.assert_close(slope, (want * tangent).sum(), rtol=1e-9, atol=1e-10)
        with forward_ad.dual_level():
            dual = at(forward_ad.make_dual(x, tangent))
            torch.testing.assert_close(
                forward_ad.unpack_dual(dual).tangent, slope, rtol=1e-9, atol=1e-10
            )
    several = torch.stack([x, x * 0.5, -x])
    loop = torch.stack([module(**{**tensors, "x": v}) for v in several])
    with sdpa_kernel(MATH):
        batched = torch.vmap(lambda v: module(**{**tensors, "x": v}))(several)
        torch.testing.assert_close(
            torch.stack([sample.real_rows(o, tensors) for o in batched]),
            torch.stack([sample.real_rows(o, tensors) for o in loop]),
            rtol=1e-9,
            atol=1e-10,
        )
        each = torch.vmap(torch.func.grad(at))(several)
        torch.testing.assert_close(each[0], want, rtol=1e-9, atol=1e-10)


@by_kind
def test_jacobian(sample):
    tensors = sample.tensors(torch.float64, 3)
    if "x" not in tensors:
        pytest.skip("integers have no derivative")
    module = sample.build(torch.float64)

    def function(x):
        return module(**{**tensors, "x": x})

    with sdpa_kernel(MATH):
        backward = torch.func.jacrev(function)(tensors["x"])
        forward = torch.func.jacfwd(function)(tensors["x"])
    torch.testing.assert_close(backward, forward, rtol=1e-9, atol=1e-10)


@by_kind
def test_compiled_autograd(sample):
    module, tensors = sample.build(), sample.tensors(requires_grad=True)
    want = gradients(sample, module, tensors)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
        got = gradients(sample, module, tensors)
    assert_gradients_near(got, want)


@by_layer
@pytest.mark.parametrize("reentrant", (False, True), ids=("saved_tensors", "reentrant"))
def test_activation_checkpointing_in_the_first_call_ever(sample, reentrant):
    """What forward number one saves, number two saves too: nothing is built on first use."""
    tensors = sample.tensors(torch.bfloat16, requires_grad=True)
    if "x" not in tensors and reentrant:
        pytest.skip("reentrant checkpoints need an input with a gradient")
    first, plain = sample.build(torch.bfloat16), sample.build(torch.bfloat16)
    loss_of(
        sample,
        lambda **t: (
            checkpoint(lambda: first(**t), use_reentrant=False)
            if not reentrant
            else checkpoint(lambda x: first(**{**t, "x": x}), t["x"], use_reentrant=True)
        ),
        tensors,
    ).backward()
    want = gradients(sample, plain, tensors)
    for name, parameter in first.named_parameters():
        assert_same(parameter.grad, want[name], name)
    if "x" in tensors:
        assert_same(tensors["x"].grad, want["x"], "x")


@by_layer
def test_autocast(sample, low=torch.bfloat16):
    """Keeps the values, gives gradients in the parameter's dtype; compiled code does the same."""
    module, tensors = sample.build(), sample.tensors(requires_grad=True)
    want = run(sample, module, tensors)
    with torch.autocast("cpu", low):
        out = run(sample, module, tensors)
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
        again = run(sample, compiled, tensors)
    assert out.dtype == again.dtype == (low if sample.is_attention else torch.float32)
    loose = 40 * unit(low) if sample.is_attention else 1e-6
    torch.testing.assert_close(out.float(), want, rtol=0, atol=loose)
    torch.testing.assert_close(again.float(), out.float(), rtol=0, atol=loose)
    with torch.autocast("cpu", low):
        loss = loss_of(sample, module, tensors)
    for parameter in module.parameters():
        grad = torch.autograd.grad(loss, parameter, retain_graph=True)[0]
        assert grad.dtype == torch.float32 and torch.isfinite(grad).all()


@by_kind
def test_autocast_to_fp16(sample):
    test_autocast(sample, torch.float16)


def copies(module):
    yield "deepcopy", copy.deepcopy(module)
    yield "pickle", pickle.loads(pickle.dumps(module))
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    yield "torch.save", torch.load(buffer, weights_only=False)


@by_layer
def test_copies_are_equal_and_independent(sample):
    module, tensors = sample.build(), sample.tensors(requires_grad=True)
    loss_of(sample, module, tensors).sum()  # after a forward pass that recorded a graph
    want = module(**tensors).detach().clone()
    for how, other in copies(module):
        assert_same(other(**tensors).detach(), want, how)
        assert set(other.state_dict()) == set(sample.parameters)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(1)
        assert_same(module(**tensors).detach(), want, f"{how}: the original changed")


@by_layer
def test_meta_device_and_materialisation(sample):
    real, tensors = sample.build(), sample.tensors()
    with torch.device("meta"):
        empty = sample.build()
    assert all(p.is_meta for p in empty.parameters())
    shadow = empty(**{n: t.to("meta") for n, t in tensors.items()})
    want = real(**tensors)
    assert shadow.is_meta and (shadow.shape, shadow.dtype) == (want.shape, want.dtype)
    made = empty.to_empty(device="cpu")
    made.load_state_dict(real.state_dict(), strict=True)
    assert_same(made(**tensors), want)


@by_layer
def test_device_and_dtype_arguments(sample):
    if sample.parameters:
        build = getattr(posenc, sample.layer)
        module = build(*sample.arguments, **sample.options, device="meta", dtype=torch.float16)
        dtype = sample.parameter_dtype(torch.float16)
        assert all(p.is_meta and p.dtype == dtype for p in module.parameters())


@by_layer
def test_every_road_to_a_dtype_gives_the_same_module(sample):
    """Built under a default dtype, cast once, cast twice, over fp32 and back."""
    for dtype, cast in (
        (torch.bfloat16, lambda m: m.bfloat16()),
        (torch.float16, lambda m: m.half()),
        (torch.float64, lambda m: m.double()),
    ):
        state = sample.build().to(dtype).state_dict()
        torch.set_default_dtype(dtype)
        born = sample.build()
        torch.set_default_dtype(torch.float32)
        want = sample.parameter_dtype(dtype)
        assert all(p.dtype == want for p in born.parameters())
        tensors = sample.tensors(dtype)
        roads = [
            born,
            cast(sample.build()),
            cast(cast(sample.build())),
            cast(sample.build()).float(),
        ]
        roads[-1] = roads[-1].to(dtype)
        outs = []
        for module in roads:
            module.load_state_dict(state)
            outs.append(module(**tensors))
            if dtype != torch.float64:
                assert all(p.dtype == want for p in module.parameters())
        for out in outs[1:]:
            assert out.dtype == dtype
            assert_same(out, outs[0])


@by_kind
def test_training_after_inference_mode(sample):
    module, tensors = sample.build(), sample.tensors(requires_grad=True)
    with torch.inference_mode():
        frozen = module(**sample.tensors()).clone()
    loss_of(sample, module, tensors).backward()
    assert_same(module(**tensors).detach(), frozen)


@by_kind
def test_four_threads_share_a_module(sample):
    module = sample.build()
    many = [sample.tensors(length=3 + n, seed=n) for n in range(4)]
    with torch.no_grad():
        want = [module(**t) for t in many]
    failures = []

    def work(number):
        try:
            with torch.no_grad():
                for _ in range(25):
                    torch.testing.assert_close(
                        module(**many[number]), want[number], rtol=0, atol=1e-6
                    )
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


@by_layer
def test_strided_input_and_gradient(sample):
    """A transposed and a strided input give what the contiguous one gives; so do the gradients."""
    tensors = sample.tensors()
    if "x" not in tensors:
        pytest.skip("integers")
    module, results = sample.build(), []
    x = tensors["x"]
    wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1])
    wide[..., ::2] = x
    for variant in (x, x.transpose(0, 1).contiguous().transpose(0, 1), wide[..., ::2]):
        leaf = variant.detach().requires_grad_()
        out = module(**{**tensors, "x": leaf})
        results.append((out, *torch.autograd.grad(out.sum(), leaf)))
    for other in results[1:]:
        if sample.is_attention:  # the matmuls of nn.Linear choose their order by stride
            for a, e in zip(other, results[0], strict=True):
                torch.testing.assert_close(a, e, rtol=0, atol=1e-5)
        else:
            assert_same(other, results[0])


@by_layer
def test_empty_inputs(sample):
    """A batch of none, and a sequence of none."""
    module = sample.build()
    if "position_ids" not in sample.tensors():
        tensors = {n: t[:0] if t.shape[0] == 2 else t for n, t in sample.tensors().items()}
        for t in tensors.values():
            if t.is_floating_point():
                t.requires_grad_()
        out = module(**tensors)
        assert out.shape[0] == 0
        out.sum().backward()
    if not sample.is_attention:
        time = sample.options.get("seq_dim", 1)
        none = sample.tensors(length=0)
        out = module(**none)
        assert out.shape[time] == 0


@by_layer
def test_repr_tells_the_options(sample):
    text = repr(sample.build())
    assert text.startswith(sample.layer)
    for argument in sample.arguments:
        assert str(argument) in text


@by_layer
def test_layers_are_pure(sample):
    """No call changes its input, or what the next call gives."""
    module, tensors = sample.build(), sample.tensors()
    before = {n: t.clone() for n, t in tensors.items()}
    with torch.no_grad():
        first = module(**tensors)
        module(**sample.tensors(length=11, seed=4))
        assert_same(module(**tensors), first)
    for name, t in tensors.items():
        assert torch.equal(t, before[name]), name
