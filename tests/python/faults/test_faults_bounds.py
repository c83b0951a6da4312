"""Sizes and offsets near the ends of int64, empty inputs, and layouts that are no dense memory."""

import math

import posenc
import posenc.functional as P
import pytest
import torch

HUGE = (2**62, 2**63 - 5, 2**63 - 1)
INV_FREQ = [1.0, 0.5]


@pytest.mark.parametrize("start", HUGE)
@pytest.mark.parametrize(
    "rotate",
    (
        lambda x, start: P.rotary_embedding(x, INV_FREQ, rotary_start=start),
        lambda x, start: P.rotary_embedding_(x, INV_FREQ, offset=1, rotary_start=start),
        lambda x, start: P.xpos_embedding(x, INV_FREQ, rotary_start=start),
        lambda x, start: P.apply_rotary(
            x, torch.ones(3, 2), torch.ones(3, 2), seq_dim=1, rotary_start=start
        ),
        lambda x, start: P.convert_rope_weights(
            torch.ones(16, 4), 2, "half", rotary_start=start, rotary_dim=4
        ),
        lambda x, start: posenc.RotaryPositionalEmbedding(16, rotary_start=start, rotary_dim=4),
    ),
    ids=("rotary", "in place", "xpos", "tables", "weights", "layer"),
)
def test_a_start_beyond_the_channels_is_an_error(rotate, start):
    with pytest.raises((ValueError, TypeError), match="expected"):
        rotate(torch.ones(2, 3, 4, 16), start)


@pytest.mark.parametrize("offset", (*HUGE, 8, -1, -(2**63)))
def test_an_offset_beyond_the_table_is_an_error(offset):
    x, weight = torch.ones(1, 3, 2), torch.ones(10, 2)
    with pytest.raises(IndexError, match=r"add_positions: expected positions in \[0, 10\)"):
        P.add_positions(x, weight, offset=offset)
    for ids in ([0, 1, 2], [2**63 - 1, 0, 1], [-(2**63), 0, 1]):
        with pytest.raises(IndexError, match=r"add_positions: expected positions in \[0, 10\)"):
            P.add_positions(x, weight, torch.tensor(ids), offset=offset)


@pytest.mark.parametrize("start", (2**62, 2**63 - 4))
def test_slopes_of_too_many_heads_are_an_error(start):
    with pytest.raises(ValueError, match="alibi_slopes: expected"):
        P.alibi_slopes(4, head_start=start, total_heads=min(start + 4, 2**63 - 1))
    with pytest.raises(ValueError, match="alibi_slopes: expected"):
        P.alibi_slopes(start)


@pytest.mark.parametrize("heads", (1, 2))
def test_no_keys_have_no_norms(heads):
    k = torch.ones(2, heads, 0, 8)
    assert torch.ops.posenc.alibi_key_norms(k, k).shape == (2, heads, 0)
    for module in (posenc.ALiBiAttention(32, 4), posenc.cpp.ALiBiAttention(32, 4)):
        out = module.forward_cached(torch.randn(2, 0, 32))
        assert (out[0] if isinstance(out, tuple) else out).shape == (2, 0, 32)


def test_tables_without_columns_have_gradients():
    x = torch.randn(1, 3, 2, 8, requires_grad=True)
    cos, sin = torch.ones(3, 0, requires_grad=True), torch.ones(3, 0, requires_grad=True)
    P.apply_rotary(x, cos, sin, seq_dim=1).sum().backward()
    assert cos.grad.shape == (3, 0)
    assert torch.equal(x.grad, torch.ones_like(x))


def test_a_sparse_tensor_is_named():
    with pytest.raises(TypeError, match="rotary_embedding: expected x to be a dense tensor"):
        torch.ops.posenc.rotary_embedding(torch.ones(2, 3, 4).to_sparse(), INV_FREQ)


def test_functionalize_takes_what_works_in_place():
    qkv = torch.randn(1, 3, 6, 4)
    want = P.rotary_embedding_qkv(qkv, INV_FREQ, 2, 2)
    got = torch.func.functionalize(
        lambda t: torch.ops.posenc.rotary_embedding_qkv_(t.clone(), INV_FREQ, 2, 2)
    )(qkv)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("broken", (math.nan, math.inf))
def test_a_blocked_value_stays_blocked_under_transforms(broken):
    q, k, v = torch.randn(3, 1, 2, 6, 4).unbind()
    v = v.clone()
    v[:, :, 4] = broken
    keep = torch.ones(6, 6, dtype=torch.bool).tril()
    for options in ({"is_causal": True}, {"mask": keep}):

        def attend(q, v, options=options):
            return P.alibi_attention(q, k, v, [0.5, 0.25], **options)

        want = attend(q, v)
        assert want[:, :, :4].isfinite().all()
        assert not want[:, :, 4:].isfinite().any()
        for out in (
            torch.func.vmap(attend, in_dims=(0, None))(q[None], v)[0],
            torch.func.jvp(lambda q, v=v: attend(q, v), (q,), (torch.ones_like(q),))[0],
        ):
            torch.testing.assert_close(out[:, :, :4], want[:, :, :4], rtol=1e-5, atol=1e-6)
            assert not out[:, :, 4:].isfinite().any()
