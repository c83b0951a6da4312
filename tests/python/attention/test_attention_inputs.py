"""What the attention layers refuse, in their own name: a bias that is a mask, another's cache."""

import posenc
import pytest
import torch
from samples.compare import needs_torchscript

LAYERS = (posenc.RoPEAttention, posenc.ALiBiAttention)
by_layer = pytest.mark.parametrize("layer", LAYERS)


def build(layer, **options):
    return layer(16, 2, **options).eval()


def last_line(error):
    return str(error.value).strip().splitlines()[-1]


@by_layer
@pytest.mark.parametrize("dtype", (torch.bool, torch.int64, torch.uint8))
def test_a_bias_is_no_mask(layer, dtype):
    module, x = build(layer), torch.randn(2, 4, 16)
    mask = torch.ones(4, 4).tril()
    message = (
        rf"{layer.__name__}: expected attn_bias of a floating dtype \(it is added to the scores; "
        rf"to block positions use mask\), got {dtype}"
    )
    _, cache = module.forward_cached(x)
    for call in (
        lambda bias: module(x, attn_bias=bias),
        lambda bias: module.forward_cached(x, attn_bias=bias),
        lambda bias: module.forward_cached(x[:, :1], cache, attn_bias=bias[:1, :1]),
        lambda bias: module.train()(x, attn_bias=bias),
    ):
        with pytest.raises(TypeError, match=message):
            call(mask.to(dtype))
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        assert module(x, attn_bias=mask.to(dtype)).dtype == x.dtype


@pytest.mark.parametrize("name", ("RoPEAttention", "ALiBiAttention"))
@pytest.mark.parametrize("dtype", (torch.bool, torch.int64))
def test_a_bias_is_no_mask_of_a_module(name, dtype):
    module, x = getattr(posenc.cpp, name)(16, 2), torch.randn(2, 4, 16)
    with pytest.raises(TypeError, match=rf"{name}: expected attn_bias of a floating dtype"):
        module(x, attn_bias=torch.ones(4, 4).tril().to(dtype))


@needs_torchscript
@by_layer
def test_a_bias_is_no_mask_in_a_script(layer):
    module, x = torch.jit.script(build(layer)), torch.randn(2, 4, 16)
    for call in (module, module.forward_cached):
        for dtype in (torch.bool, torch.int64):
            with pytest.raises(torch.jit.Error) as error:
                call(x, attn_bias=torch.ones(4, 4, dtype=dtype))
            assert f"{layer.__name__}: expected attn_bias" in last_line(error)
            assert last_line(error).endswith(f"got {dtype}")
        call(x, attn_bias=torch.ones(4, 4))


def caches(layer, x):
    """Caches that do not fit a layer of two heads, the error, and what it says came."""
    own = build(layer).forward_cached(x)[1]
    yield layer(16, 4).forward_cached(x)[1], "ValueError", "[2, 4, 4, 4]"
    yield build(layer, n_kv_heads=1).forward_cached(x)[1], "ValueError", "[2, 1, 4, 8]"
    yield layer(8, 2).forward_cached(x[:, :, :8])[1], "ValueError", "[2, 2, 4, 4]"
    yield build(layer).forward_cached(x[:1])[1], "ValueError", "[1, 2, 4, 8]"
    yield own._replace(key=own.key[0]), "ValueError", "[2, 4, 8]"
    yield own._replace(value=own.value[:, :, 1:]), "ValueError", "[2, 2, 3, 8]"
    yield build(layer).double().forward_cached(x.double())[1], "TypeError", "torch.float64"
    yield own._replace(value=own.value.half()), "TypeError", "torch.float16"


@by_layer
@pytest.mark.parametrize("scripted", (False, pytest.param(True, marks=needs_torchscript)))
def test_a_cache_of_another_layer(layer, scripted):
    x = torch.randn(2, 4, 16)
    module = build(layer)
    if scripted:
        module = torch.jit.script(module)
    for cache, kind, came in caches(layer, x):
        with pytest.raises((ValueError, TypeError, torch.jit.Error)) as error:
            module.forward_cached(x[:, :1], cache)
        line = last_line(error)
        assert f"{layer.__name__}: expected a cache whose " in line
        assert line.endswith(f"got {came}")
        assert kind in (line if scripted else error.typename)


@by_layer
def test_caches_of_both_dtypes_serve_under_autocast(layer):
    module, x = build(layer, is_causal=True), torch.randn(2, 4, 16)
    plain = module.forward_cached(x)[1]
    with torch.autocast("cpu", torch.bfloat16):
        for cache in (plain, module.forward_cached(x)[1], module.empty_cache(2)):
            out, _ = module.forward_cached(x[:, :1], cache)
            assert out.isfinite().all()
