"""C: autograd, compile, export, custom operators, C++. A test has the name of its fault."""

import copy
import inspect
import io

import posenc
import posenc.functional as P
import pytest
import reference
import torch
import torch._dynamo.testing
from samples.compare import assert_near, assert_same, needs_torchscript
from samples.layers import LAYERS, PLAIN
from samples.operators import SAMPLES

by_layer = pytest.mark.parametrize("sample", LAYERS, ids=str)
by_kind = pytest.mark.parametrize("sample", PLAIN, ids=str)
FREQ = reference.rope_inv_freq(8)


@needs_torchscript
@by_kind
def test_C1_no_complex_number_in_any_graph(sample):
    module, tensors = sample.build(), sample.tensors()
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            for value in torch.utils._pytree.tree_leaves((args, kwargs, out)):
                if isinstance(value, torch.Tensor):
                    seen.append(value.dtype)
            return out

    with Watch():
        module(**tensors)
        leaf = {**tensors, **{n: t.requires_grad_() for n, t in tensors.items() if n == "x"}}
        module(**leaf).sum().backward()
        if "x" in tensors:
            torch.vmap(lambda v: module(**{**tensors, "x": v}))(tensors["x"].detach()[None])
    traced = torch.jit.trace(module, example_kwarg_inputs=sample.tensors(), check_trace=False)
    assert seen and not any(dtype.is_complex for dtype in seen)
    assert "Complex" not in str(traced.inlined_graph)


@by_kind
def test_C2_lengths_do_not_recompile(sample):
    """Lengths 16 to 32 and back: two compilations at most, fullgraph from the very first call."""
    module = sample.build()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, backend=counter, fullgraph=True)
    for length in [*range(16, 33), 20]:
        tensors = sample.tensors(length=length)
        torch.testing.assert_close(compiled(**tensors), module(**tensors), rtol=0, atol=2e-6)
    assert counter.frame_count <= 2, f"{counter.frame_count} compilations"


@by_kind
def test_C2_offsets_do_not_recompile(sample):
    module = sample.build()
    if "offset" not in inspect.signature(module.forward).parameters:
        pytest.skip("its positions are given")
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, backend=counter, fullgraph=True)
    for offset in range(1, 18):
        tensors = sample.tensors(length=8)
        got = compiled(**tensors, offset=offset)
        torch.testing.assert_close(got, module(**tensors, offset=offset), rtol=0, atol=2e-6)
    assert counter.frame_count <= 2, f"{counter.frame_count} compilations"
    torch._dynamo.reset()
    counter.frame_count = 0
    for length in range(16, 29):
        tensors = sample.tensors(length=length)
        got = compiled(**tensors, offset=length // 3)
        torch.testing.assert_close(got, module(**tensors, offset=length // 3), rtol=0, atol=2e-6)
    assert counter.frame_count <= 3, f"{counter.frame_count} compilations"


@pytest.mark.parametrize("name", ("RoPEAttention", "ALiBiAttention"))
def test_C2_decoding_with_a_cache_does_not_recompile(name):
    """Steps over a growing cache, compiled without a break, equal one pass."""
    layer = getattr(posenc, name)(16, 2, is_causal=True)
    x = torch.randn(1, 24, 16)
    want = layer(x)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    step = torch.compile(layer.forward_cached, backend=counter, fullgraph=True)
    out, cache = layer.forward_cached(x[:, :8])
    outs = [out]
    for t in range(8, 24):
        out, cache = step(x[:, t : t + 1], cache)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 1), want, rtol=0, atol=1e-5)
    assert counter.frame_count <= 3, f"{counter.frame_count} compilations"


def test_C4_forms_that_exporters_and_runtimes_use():
    rope = posenc.RotaryPositionalEmbedding(8)
    x = torch.randn(2, 5, 3, 8)
    ids = torch.arange(5)[None] + 7
    assert_same(rope(x, ids), rope(x, None, 7))
    assert_same(rope(x, ids.expand(2, 5)), rope(x, None, 7))
    flat = x.flatten(2)
    assert_same(rope(flat, ids), rope(x, ids).flatten(2))
    angle = torch.arange(99.0)[:, None] * torch.tensor(FREQ).float()
    heads = x.transpose(1, 2)
    long = P.apply_rotary(heads, angle.cos(), angle.sin())
    short = P.apply_rotary(heads, angle[:5].cos(), angle[:5].sin())
    assert_same(long, short)
    assert_same(
        P.apply_rotary(heads, angle.cos(), angle.sin(), ids),
        P.apply_rotary(heads, angle.cos(), angle.sin(), ids.expand(2, 5)),
    )


@needs_torchscript
@by_kind
def test_C5_a_trace_freezes_nothing(sample):
    """Traced at four tokens in fp32: other lengths and dtypes are equal to eager."""
    module = sample.build().eval()
    traced = torch.jit.trace(
        module, example_kwarg_inputs=sample.tensors(length=4), check_trace=False
    )
    buffer = io.BytesIO()
    torch.jit.save(traced, buffer)
    buffer.seek(0)
    for each in (traced, torch.jit.load(buffer)):
        for length in (9, 2):
            tensors = sample.tensors(length=length)
            torch.testing.assert_close(each(**tensors), module(**tensors), rtol=0, atol=1e-6)
        wide = sample.tensors(torch.float64, 6)
        both = copy.deepcopy(each).double(), copy.deepcopy(module).double()
        torch.testing.assert_close(both[0](**wide), both[1](**wide), rtol=0, atol=1e-12)
    text = str(traced.inlined_graph)
    assert 'device="cpu"' not in text.replace("'", '"')


class TestC7:
    """Out of place by default; the in-place form says so, and gradients stay right."""

    def test_C7_the_input_is_unchanged(self):
        for sample in SAMPLES:
            tensors = sample.tensors(torch.float32)
            before = {name: t.clone() for name, t in tensors.items()}
            versions = {name: t._version for name, t in tensors.items()}
            outs = sample.run(tensors)
            for name, t in tensors.items():
                assert torch.equal(t, before[name]) and t._version == versions[name]
                for out in outs:
                    assert not out.numel() or out.data_ptr() != t.data_ptr(), (
                        f"{sample} aliases {name}"
                    )

    def test_C7_a_value_used_twice(self):
        q = torch.randn(1, 3, 2, 8, dtype=torch.float64, requires_grad=True)
        w = torch.randn_like(q)
        rope = posenc.RotaryPositionalEmbedding(8)
        (q * rope(q) * w).sum().backward()
        leaf = q.detach().clone().requires_grad_()
        turned = rope(leaf.clone())
        (leaf * turned * w).sum().backward()
        torch.testing.assert_close(q.grad, leaf.grad)

    def test_C7_the_gradient_is_the_rotation_back(self):
        w = torch.tensor([[[[1.0, 0.0]]]])
        q = torch.zeros(1, 1, 1, 2, requires_grad=True)
        (posenc.RotaryPositionalEmbedding(2)(q, None, 1) * w).sum().backward()
        want = torch.tensor([0.540302, -0.841471])
        torch.testing.assert_close(q.grad[0, 0, 0], want, rtol=0, atol=1e-6)

    def test_C7_the_schema_declares_what_is_written(self):
        for name in torch._C._dispatch_get_all_op_names():
            if not name.startswith("posenc::"):
                continue
            packet, _, overload = name.removeprefix("posenc::").partition(".")
            op = getattr(getattr(torch.ops.posenc, packet), overload or "default")
            writes = [a for a in op._schema.arguments if a.alias_info and a.alias_info.is_write]
            assert bool(writes) == packet.endswith("_"), name
            # Numbers of a grid decide the size of the result: no graph can hold these, and each
            # says so.
            reads = packet in ("vision_position_ids", "mrope_position_ids", "xdrope_position_ids")
            assert (torch.Tag.pt2_compliant_tag in op.tags) != reads, name


@pytest.mark.parametrize("options", (
    {}, {"interleaved": False}, {"rotary_start": 2}, {"offset": 9}, {"interleaved_out": False},
    {"rotary_start": 1, "interleaved": False, "offset": 70},
    {"inverse": True, "attention_factor": 1.2},
), ids=lambda o: "-".join(o) or "plain")  # fmt: skip
def test_C8_the_fused_path_has_the_gradient_of_the_slow_one(options):
    x = torch.randn(2, 4, 2, 11, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn_like(x)

    def fused(t):
        return P.rotary_embedding(t, FREQ, **options)

    assert torch.autograd.gradcheck(fused, (x,))
    got = torch.autograd.grad(fused(x), x, upstream)[0]
    slow = torch.func.vjp(fused, x.detach())[1](upstream)[0]
    torch.testing.assert_close(got, slow, rtol=1e-12, atol=1e-12)
    back = dict(options)
    back["inverse"] = not options.get("inverse", False)
    if "interleaved_out" in options:
        back["interleaved"], back["interleaved_out"] = False, True
    want = reference.rotary_embedding(upstream.numpy(), FREQ, **back)
    assert_near(got, want, steps=200, magnitude=4.0)


def test_C10_transforms_of_the_rotation():
    rope = posenc.RotaryPositionalEmbedding(4)
    x, t = torch.randn(2, 3, 5, 2, 4, dtype=torch.float64).unbind()
    loop = torch.stack([rope(row[None])[0] for row in x])
    torch.testing.assert_close(torch.vmap(lambda row: rope(row[None])[0])(x), loop)
    torch.testing.assert_close(torch.func.jvp(rope, (x,), (t,))[1], rope(t))
    one = torch.randn(1, 1, 1, 4, dtype=torch.float64)
    jacobian = torch.func.jacrev(lambda v: rope(v, None, 3))(one).reshape(4, 4)
    want = torch.zeros(4, 4, dtype=torch.float64)
    for i, f in enumerate((1.0, 0.01)):
        c, s = (
            torch.tensor(3 * f, dtype=torch.float64).cos(),
            torch.tensor(3 * f, dtype=torch.float64).sin(),
        )
        want[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.stack((c, -s, s, c)).reshape(2, 2)
    torch.testing.assert_close(jacobian, want)
    hessian = torch.func.hessian(lambda v: (rope(v, None, 3) ** 3).sum())(one)
    assert torch.isfinite(hessian).all()


@pytest.mark.parametrize("form", ("contiguous", "slice of qkv", "three axes", "heads first"))
def test_C11_opcheck_over_layouts(form):
    qkv = torch.randn(2, 5, 3, 4, 8)
    x = {
        "contiguous": qkv[:, :, 0].contiguous(),
        "slice of qkv": qkv[:, :, 1],
        "three axes": torch.randn(2, 5, 8),
        "heads first": qkv[:, :, 1].transpose(1, 2),
    }[form].detach()
    seq_dim = 2 if form == "heads first" else 1
    options = {"seq_dim": seq_dim}
    ops = torch.ops.posenc
    for op, args, extra in (
        (ops.rotary_embedding.default, (x.requires_grad_(), FREQ), options),
        (ops.rotary_embedding_.default, (x.detach().clone(), FREQ), options),
        (ops.add_sinusoidal.default, (x, FREQ), options),
    ):
        result = torch.library.opcheck(op, args, extra)
        assert set(result.values()) == {"SUCCESS"}, (op, result)
    if x.dim() == 4:
        q = x if form == "heads first" else x.transpose(1, 2)
        result = torch.library.opcheck(ops.alibi_attention.default, (q, q, q, [0.5] * 4))
        assert set(result.values()) == {"SUCCESS"}, result


@pytest.mark.parametrize("width", (2, 4, 6, 10, 14, 18, 30, 34))
def test_C13_no_loop_reads_or_writes_past_its_rows(width):
    """Tensors allocated exactly, between guards: each dtype, layout and tail of a vector loop."""
    freq = reference.rope_inv_freq(width)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        for interleaved in (True, False):
            guard = 64
            memory = torch.full((2 * guard + 3 * width,), 7.0, dtype=dtype)
            x = memory[guard : guard + 3 * width].view(1, 3, 1, width)
            x.copy_(torch.randn(1, 3, 1, width))
            want = P.rotary_embedding(x.clone(), freq, interleaved=interleaved)
            P.rotary_embedding_(x, freq, interleaved=interleaved)
            assert_same(x.clone(), want)
            assert (memory[:guard] == 7).all() and (memory[-guard:] == 7).all()
            cos, sin = (torch.randn(3, width // 2).to(dtype) for _ in range(2))
            out = P.apply_rotary(want, cos, sin, seq_dim=1, interleaved=interleaved)
            expected = reference.apply_rotary(
                want.double().numpy(), cos.double().numpy(), sin.double().numpy(),
                seq_dim=1, interleaved=interleaved,
            )  # fmt: skip
            assert_near(out, expected, steps=4, magnitude=20.0)


@by_layer
def test_C14_casts_twice_and_learned_tensors_only(sample):
    module, tensors = sample.build(), sample.tensors(torch.bfloat16)
    once = copy.deepcopy(module).bfloat16()
    twice = copy.deepcopy(module).bfloat16().to(torch.bfloat16)
    assert_same(once(**tensors), twice(**tensors))
    assert {n for n, _ in module.named_parameters()} == set(sample.parameters)


def test_C16_changed_frequencies_are_used_at_once():
    x = torch.randn(1, 9, 2, 8)
    for build in (lambda b: posenc.RotaryPositionalEmbedding(8, base=b),):
        rope = build(10000.0)
        rope(x)
        rope.inv_freq = build(500000.0).inv_freq
        assert_same(rope(x), build(500000.0)(x))
    sinusoidal = posenc.SinusoidalPositionalEncoding(8)
    flat = x[:, :, 0]
    sinusoidal(flat)
    sinusoidal.inv_freq = posenc.SinusoidalPositionalEncoding(8, base=500000.0).inv_freq
    assert_same(sinusoidal(flat), posenc.SinusoidalPositionalEncoding(8, base=500000.0)(flat))
    alibi = posenc.ALiBiAttention(16, 4)
    tokens = torch.randn(1, 9, 16)
    alibi(tokens)
    alibi.slopes = P.alibi_slopes(4, bias_max=4.0)
    other = posenc.ALiBiAttention(16, 4, bias_max=4.0)
    other.load_state_dict(alibi.state_dict())
    assert_same(alibi(tokens), other(tokens))
