"""Frequencies against the trained length, blocks that ALiBi skips, weights of layers."""

import json
import math

import posenc
import pytest
import reference
import torch
import torch.nn.functional as F
from posenc import analysis


def test_every_scaling_has_an_example_that_a_layer_takes():
    with pytest.raises(ValueError, match="expected rope_type to be one of") as caught:
        posenc.RotaryPositionalEmbedding(8, scaling={"rope_type": "?"})
    known = str(caught.value).split("one of ")[1].split(", got")[0].split(", ")
    examples = analysis.example_scalings(32)
    assert sorted(examples) == sorted(known)
    for scaling in examples.values():
        rope = posenc.RotaryPositionalEmbedding(32, scaling=scaling)
        figures = analysis.analyze_rope(rope, 4096, 8 * 4096, quiet=True)
        assert figures.rope_type == scaling["rope_type"]
        assert figures.inv_freq == rope.inv_freq_at(8 * 4096)
        json.dumps(figures.to_dict(), allow_nan=False)


def test_plain_rope(capsys):
    figures = analysis.analyze_rope(posenc.RotaryPositionalEmbedding(8), 100)
    want = [1.0, 0.1, 0.01, 0.001]
    assert figures.inv_freq == pytest.approx(want)
    assert figures.wavelengths == pytest.approx([2 * math.pi / f for f in want])
    assert figures.turns == pytest.approx([100 * f / (2 * math.pi) for f in want])
    assert figures.seen_whole == 2 and figures.stretch == [1.0] * 4
    assert list(figures.scores) == [1, 10, 99]
    printed = capsys.readouterr().out
    assert "2 of 4" in printed and "6.283 ... 6283" in printed


def test_lengths_and_stretch():
    scaling = analysis.example_scalings(16, 8.0, 64)
    rope = posenc.RotaryPositionalEmbedding(16, scaling=scaling["dynamic"])
    short = analysis.analyze_rope(rope, quiet=True)
    assert (short.trained_length, short.length) == (64, 64)
    assert short.stretch == pytest.approx([1.0] * 8)
    long = analysis.analyze_rope(rope, length=512, quiet=True)
    assert long.stretch[0] == 1.0 and long.stretch[-1] == pytest.approx(8.0)
    linear = posenc.RotaryPositionalEmbedding(16, scaling=scaling["linear"])
    assert analysis.analyze_rope(linear, 64, quiet=True).stretch == pytest.approx([8.0] * 8)


def test_pairs_that_do_not_turn():
    scaling = {"rope_type": "proportional", "partial_rotary_factor": 0.25}
    rope = posenc.RotaryPositionalEmbedding(16, scaling=scaling)
    figures = analysis.analyze_rope(rope, 100, quiet=True)
    assert figures.wavelengths[2:] == [math.inf] * 6
    assert figures.to_dict()["wavelengths"][2:] == [None] * 6
    assert "pairs that do not turn" in str(figures) and "inf" not in str(figures)


def test_a_rope_of_which_no_pair_turns():
    scaling = {"rope_type": "proportional", "partial_rotary_factor": 0.25}
    rope = posenc.RotaryPositionalEmbedding(2, scaling=scaling)
    figures = analysis.analyze_rope(rope, 100, quiet=True)
    assert figures.wavelengths == [math.inf] and figures.slowed == "no pair turns"
    assert str(figures).count("no pair turns") == 2


def test_the_other_rope_layers():
    for layer in (
        posenc.XPosRotaryEmbedding(16),
        posenc.LongSequenceRoPE(16),
        posenc.LearnedRotaryEmbedding(16),
        posenc.LearnedRotaryEmbedding(16, n_heads=2, parametrisation="direct"),
        posenc.RoPEAttention(64, 4),
        posenc.RotaryPositionalEmbedding(16, axes=[0] * 4 + [1] * 4),
    ):
        figures = analysis.analyze_rope(layer, quiet=True)
        assert figures.inv_freq == pytest.approx(reference.rope_inv_freq(16))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: analysis.analyze_rope(torch.nn.Identity()), TypeError, ["RoPE", "Identity"]),
        (
            lambda: analysis.analyze_rope(posenc.SinusoidalPositionalEncoding(8)),
            TypeError,
            ["Sinusoidal"],
        ),
        (lambda: analysis.analyze_rope(posenc.AxialRotaryEmbedding(8)), TypeError, ["Axial"]),
        (
            lambda: analysis.analyze_rope(posenc.RotaryPositionalEmbedding(8), 0),
            ValueError,
            ["trained_length", "0"],
        ),
        (
            lambda: analysis.analyze_rope(
                posenc.RotaryPositionalEmbedding(
                    8, base=1.0, scaling=analysis.example_scalings(8)["yarn"]
                )
            ),
            ValueError,
            ["finite frequencies", "theta 1", "yarn"],
        ),
        (lambda: analysis.analyze_alibi(3.0), TypeError, ["slopes", "float"]),
        (lambda: analysis.analyze_alibi(torch.ones(1, 1)), TypeError, ["one slope a head"]),
        (lambda: analysis.analyze_alibi([0.5], 0), ValueError, ["length", "0"]),
        (lambda: analysis.block_map(0.5, 0), ValueError, ["multiple of 64", "0"]),
        (lambda: analysis.block_map(0.5, 100), ValueError, ["multiple of 64", "100"]),
        (lambda: analysis.block_map(0.5, 64, head_dim=160), ValueError, ["128", "160"]),
        (
            lambda: analysis.block_shares([0.5, 0.25], 9, qkv=[torch.ones(1, 1, 9, 4)] * 3),
            ValueError,
            ["head for each slope"],
        ),
        (
            lambda: analysis.attention_weights(torch.nn.Linear(2, 2), torch.ones(1, 1, 2)),
            TypeError,
            ["RoPEAttention", "Linear"],
        ),
        (
            lambda: analysis.attention_weights(posenc.cpp.ALiBiAttention(8, 2), torch.ones(1, 1)),
            TypeError,
            ["posenc.ALiBiAttention, got posenc.cpp.ALiBiAttention"],
        ),
        (lambda: analysis.trade_offs(["sinusoidal", "nope"]), ValueError, ["alibi", "nope"]),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(("length", "slope"), [(512, 0.5), (704, 0.125), (576, 0.25), (128, 0.0)])
def test_the_map_of_blocks_adds_up_to_the_operator_s_own_count(length, slope):
    qkv = [torch.randn(1, 1, length, 16) for _ in range(3)]
    counts = torch.ops.posenc.alibi_attention_blocks(*qkv, [slope], None, True).tolist()
    blocks = analysis.block_map(slope, length, qkv=qkv)
    n = length // 64
    assert blocks.shape == (n, n) and set(blocks.unique().tolist()) <= {-1, 0, 1}
    assert (blocks == 1).sum() == counts[0]
    assert (blocks >= 0).sum() == n * (n + 1) // 2
    assert (blocks.triu(1) == -1 * torch.ones(n, n).triu(1)).all()
    assert blocks.diagonal().eq(1).all()
    if slope == 0.0:
        assert (blocks == 1).sum() == n * (n + 1) // 2


def test_a_far_key_that_wins_is_seen_in_the_map():
    q, k, v = (torch.randn(1, 1, 512, 16) for _ in range(3))
    k[0, 0, 5] = 300 * q[0, 0, 500] / q[0, 0, 500].norm()
    blocks = analysis.block_map(0.5, 512, qkv=(q, k, v))
    assert blocks[7, 0] == 1 and (blocks[7] == 0).any()


def test_figures_of_alibi(capsys):
    layer = posenc.ALiBiAttention(64, 4)
    figures = analysis.analyze_alibi(layer, 512)
    assert figures.slopes == layer.slopes
    assert figures.half == pytest.approx([math.log(2) / m for m in layer.slopes])
    assert figures.hundredth == pytest.approx([math.log(100) / m for m in layer.slopes])
    assert 0 < figures.forward[0] < 1 and figures.forward == sorted(figures.forward)
    assert "0.250000" in capsys.readouterr().out
    free = analysis.analyze_alibi([0.0], 64, quiet=True)
    assert free.half == [math.inf] and free.to_dict()["half"] == [None]
    assert free.forward == free.backward == [1.0]


def test_blocks_of_a_model_s_own_heads():
    q, k, v = torch.randn(1, 4, 300, 8), torch.randn(1, 2, 300, 8), torch.randn(1, 2, 300, 8)
    shares = analysis.block_shares([0.5] * 4, 300, qkv=(q, k, v))
    whole = torch.ops.posenc.alibi_attention_blocks(q, k, v, [0.5] * 4, None, True)
    assert sum(forward for forward, _ in shares) / 4 == pytest.approx((whole[0] / whole[1]).item())


def rotated(layer, t):
    rope = layer.rope
    want = reference.rotary_embedding(t.detach().numpy(), rope.inv_freq)
    return torch.as_tensor(want)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", ["RoPEAttention", "ALiBiAttention"])
def test_weights_are_those_of_the_formula_and_give_the_layer_s_output(kind, is_causal):
    layer = getattr(posenc, kind)(32, 4, n_kv_heads=2, is_causal=is_causal, dropout=0.3).train()
    x = torch.randn(2, 9, 32)
    keep = torch.ones(9, 9)
    keep[3] = 0
    keep[:, 4] = 0
    weights = analysis.attention_weights(layer, x, keep)
    assert weights.shape == (2, 4, 9, 9) and layer.training and not weights.requires_grad
    assert weights[:, :, 3].eq(0).all() and weights[..., 4].eq(0).all()
    q = layer.query_proj(x).unflatten(-1, [4, 8])
    k = layer.key_proj(x).unflatten(-1, [2, 8])
    if kind == "RoPEAttention":
        q, k = rotated(layer, q), rotated(layer, k)
    k = k.double().repeat_interleave(2, 2)
    scores = torch.einsum("blhd,bshd->bhls", q.double(), k) / 8**0.5
    i = torch.arange(9)
    behind = i[:, None] - i[None]
    if kind == "ALiBiAttention":
        slopes = torch.tensor(reference.alibi_slopes(4), dtype=torch.float64)
        scores = scores - slopes[:, None, None] * behind.abs()
    allowed = keep.bool() & ((behind >= 0) if is_causal else True)
    want = F.softmax(scores.masked_fill(~allowed, -math.inf), -1).nan_to_num()
    torch.testing.assert_close(weights.double(), want.detach(), rtol=0, atol=2e-6)
    value = layer.value_proj(x).unflatten(-1, [2, 8]).transpose(1, 2).repeat_interleave(2, 1)
    mixed = layer.out_proj((weights @ value).transpose(1, 2).flatten(2))
    torch.testing.assert_close(mixed, layer.eval()(x, keep), rtol=0, atol=2e-6)


def test_weights_take_what_the_layer_takes():
    layer = posenc.ALiBiAttention(16, 2)
    x = torch.randn(1, 5, 16)
    weights = analysis.attention_weights(layer, x, key_padding_mask=torch.tensor([[0, 1, 1, 1, 1]]))
    assert weights[..., 0].eq(0).all()
    with pytest.raises(ValueError, match="expected x of shape"):
        analysis.attention_weights(layer, x[0])


def test_trade_offs_count_parameters():
    rows = analysis.trade_offs(("sinusoidal", "learned", "rope", "alibi"), d_model=16, max_len=50)
    assert [row.parameters for row in rows] == [0, 800, 0, 0]
    assert all(all(str(value) for value in row.to_dict().values()) for row in rows)


def test_trade_offs_draw_nothing_and_store_nothing():
    state = torch.get_rng_state()
    rows = analysis.trade_offs(("learned", "rope", "alibi"), d_model=3, max_len=10**12)
    assert [row.parameters for row in rows] == [3 * 10**12, 0, 0]
    assert torch.equal(torch.get_rng_state(), state)
