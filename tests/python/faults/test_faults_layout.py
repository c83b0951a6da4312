"""L: layout, axis and application of the rotation. A test has the name of its fault."""

import posenc
import posenc.functional as P
import pytest
import torch
from samples.compare import assert_same


def test_L2_tables_and_pairs_fit_together():
    """The norm stays in every layout, everywhere; a table tiled the wrong way gives 24.63."""
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64).expand(1, 9, 1, 4)
    for interleaved in (True, False):
        for out in (None, True, False):
            y = P.rotary_embedding(x, [1.0, 0.01], interleaved=interleaved, interleaved_out=out)
            torch.testing.assert_close((y**2).sum(-1), torch.full_like(y[..., 0], 30.0))
    wide = torch.randn(2, 7, 3, 64, dtype=torch.float64)
    for interleaved in (True, False):
        y = posenc.RotaryPositionalEmbedding(64, interleaved=interleaved)(wide, None, 999)
        torch.testing.assert_close(y.norm(dim=-1), wide.norm(dim=-1))


@pytest.mark.parametrize("heads", (2, 3))
def test_L3_time_is_the_named_axis(heads):
    """All vectors equal: the output differs along time, and nowhere else. Also where H = T."""
    x = torch.randn(8).expand(2, 3, heads, 8).contiguous()
    first = posenc.RotaryPositionalEmbedding(8)
    second = posenc.RotaryPositionalEmbedding(8, seq_dim=2)
    out = first(x)
    assert_same(out, out[:1, :, :1].expand_as(out))
    for a in range(3):
        for b in range(a):
            assert not torch.equal(out[:, a], out[:, b])
    assert_same(second(x.transpose(1, 2)).transpose(1, 2), out)
    assert_same(second(x.transpose(1, 2).contiguous()).transpose(1, 2), out)
    if heads == 3:
        assert not torch.equal(second(x), out)
    for seq_dim, batch in ((0, 1), (1, 0)):
        y = P.rotary_embedding(torch.ones(3, 3, 3, 8), [1.0], seq_dim=seq_dim)
        assert_same(y, y.select(batch, 0).unsqueeze(batch).expand_as(y).contiguous())


def test_L5_the_rotated_width_is_said_once():
    """Three layers from one set of options, or one after the other: each rotates the same four."""
    x = torch.randn(1, 5, 2, 8)
    layers = [posenc.RotaryPositionalEmbedding(8, rotary_dim=4) for _ in range(3)]
    for layer in layers:
        assert layer.rotary_dim == 4 and len(layer.inv_freq) == 2
        assert layer.inv_freq == [1.0, 0.01]
        y = layer(x, None, 3)
        assert_same(y[..., 4:], x[..., 4:])
        assert not (y[..., :4] == x[..., :4]).any()
    attention = posenc.RoPEAttention(16, 2, rotary_dim=4)
    assert len(attention.rope.inv_freq) == 2
    nested = [posenc.RoPEAttention(16, 2, rotary_dim=4) for _ in range(3)]
    assert [len(m.rope.inv_freq) for m in nested] == [2, 2, 2]


@pytest.mark.parametrize("interleaved", (True, False))
def test_L6_a_shift_uses_the_same_width(interleaved):
    rope = posenc.RotaryPositionalEmbedding(8, rotary_dim=4, interleaved=interleaved)
    key = torch.randn(1, 1, 1, 8, dtype=torch.float64)
    at_five = rope(key, None, 5)
    for shifted in (
        rope.shift(at_five, -2),
        rope.shift(at_five, torch.tensor([-2])),
        P.shift(at_five, -2, rope.inv_freq, interleaved=interleaved),
        rope(at_five, None, -2),
    ):
        torch.testing.assert_close(shifted, rope(key, None, 3), rtol=0, atol=1e-12)
        assert_same(shifted[..., 4:], key[..., 4:])
    last = posenc.RotaryPositionalEmbedding(8, rotary_start=4, interleaved=interleaved)
    shifted = last.shift(last(key, None, 5), -2)
    torch.testing.assert_close(shifted, last(key, None, 3), rtol=0, atol=1e-12)
    assert_same(shifted[..., :4], key[..., :4])


def variants(x):
    """The same numbers in other memory."""
    fused = torch.randn(*x.shape[:-1], 3 * x.shape[-1]).to(x.dtype)
    fused[..., x.shape[-1] : 2 * x.shape[-1]] = x
    yield "slice of qkv", fused[..., x.shape[-1] : 2 * x.shape[-1]]
    spread = torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)
    spread[..., ::2] = x
    yield "every second", spread[..., ::2]
    yield "transposed", x.transpose(1, 2).contiguous().transpose(1, 2)
    yield "channels outermost", x.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)
    yield "reversed twice", x.flip(1).contiguous().flip(1)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64), ids=str)
@pytest.mark.parametrize("interleaved", (True, False))
def test_L8_any_strides_for_inputs_and_gradients(dtype, interleaved):
    freq = posenc.RotaryPositionalEmbedding(24).inv_freq
    x = torch.randn(2, 70, 3, 24).to(dtype)
    upstream = torch.randn_like(x)

    def run(value, gradient):
        leaf = value.detach().requires_grad_()
        out = P.rotary_embedding(leaf, freq, interleaved=interleaved)
        return out, torch.autograd.grad(out, leaf, gradient)[0]

    want = run(x, upstream)
    for name, other in variants(x):
        assert_same(run(other, upstream), want, name)
    for name, other in variants(upstream):
        assert_same(run(x, other), want, f"gradient {name}")
    expanded = x[:, :, :1].expand(-1, -1, 3, -1)
    assert_same(run(expanded, upstream), run(expanded.contiguous(), upstream), "expanded")
    ones = torch.ones((), dtype=dtype).expand_as(x)
    assert_same(run(x, ones), run(x, ones.contiguous()), "gradient of sum()")
    one_token = x[:, :1]
    assert_same(run(one_token, ones[:, :1])[0], run(one_token.clone(), ones[:, :1])[0])


def test_L11_an_odd_width_is_refused_in_words():
    for build in (
        lambda: posenc.RotaryPositionalEmbedding(5),
        lambda: posenc.RotaryPositionalEmbedding(8, rotary_dim=5),
        lambda: posenc.RotaryPositionalEmbedding(8, rotary_start=3),
        lambda: posenc.LongSequenceRoPE(5),
        lambda: posenc.RoPEAttention(10, 2),
        lambda: posenc.RoPEAttention(16, 2, rotary_dim=5),
        lambda: posenc.choose_positional_encoding({"pos_encoding_type": "rope", "d_model": 5}),
        lambda: P.rope_inv_freq(5),
    ):
        with pytest.raises(ValueError) as error:
            build()
        assert "5" in str(error.value) and "even" in str(error.value), str(error.value)
