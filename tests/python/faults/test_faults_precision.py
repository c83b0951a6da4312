"""P: precision of frequencies, positions and tables. A test has the name of its fault."""

import copy
import math

import posenc
import posenc.functional as P
import pytest
import reference
import torch
import torch.nn.functional as F
from samples.compare import FLOATS, assert_near, assert_same

every_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d)[6:])


def unit_rows(length, head_dim, dtype=torch.float32):
    """x whose pairs are (1, 0), so that a rotation shows its cos and sin."""
    x = torch.zeros(1, length, 1, head_dim, dtype=dtype)
    x[..., 0::2] = 1
    return x


def test_P1_a_cast_of_the_module_leaves_the_frequencies_alone():
    casts = {
        "bfloat16": lambda m: m.to(torch.bfloat16),
        "half": lambda m: m.half(),
        "half of double": lambda m: m.double().half(),
        "bfloat16 and back": lambda m: m.bfloat16().float(),
        "inside a model": lambda m: torch.nn.Sequential(m).bfloat16()[0],
    }
    angle = 1000 * 10000 ** (-1 / 32)
    assert abs(angle - 749.894209) < 1e-6
    x = unit_rows(1, 64)
    for name, cast in casts.items():
        rope = cast(posenc.RotaryPositionalEmbedding(64))
        out = rope(x, None, 1000)[0, 0, 0]
        assert abs(out[2] - math.cos(angle)) < 1e-6, name
        assert abs(out[3] - math.sin(angle)) < 1e-6, name
        assert rope.inv_freq == reference.rope_inv_freq(64), name
    for layer in (posenc.SinusoidalPositionalEncoding(64), posenc.LongSequenceRoPE(64)):
        before = layer.inv_freq
        assert layer.bfloat16().half().inv_freq == before == reference.rope_inv_freq(64)


def test_P1_attention_and_embedding_in_bf16_use_exact_phases():
    """Far from the start: what a rounded frequency would do there is visible in any dtype."""
    attention = posenc.RoPEAttention(64, 1).bfloat16()
    q = torch.randn(1, 1, 1, 64).bfloat16()
    turned, _ = attention.rope.rotate(q, q, None, 1_000_003)
    want = reference.rotary_embedding(
        q.double().numpy(), reference.rope_inv_freq(64), offset=1_000_003
    )
    assert_near(turned, want, steps=6, magnitude=4.0)
    sinusoidal = posenc.SinusoidalPositionalEncoding(64).half()
    out = sinusoidal(torch.zeros(1, 1, 64).half(), None, 1_000_003)
    want = reference.sinusoidal_encoding([[1_000_003]], reference.rope_inv_freq(64), 64)
    assert_near(out, want, steps=6, magnitude=1.0)


@every_dtype
def test_P2_neighbours_never_share_a_position(dtype):
    """In every dtype the pair of frequency 1 turns between any two neighbours of the first 4096."""
    rows = P.rotary_embedding(unit_rows(4097, 2, dtype), [1.0])[0, :, 0]
    wide = P.rotary_embedding(unit_rows(4097, 2, torch.float64), [1.0])[0, :, 0]
    assert not (rows[1:] == rows[:-1]).all(-1).any()
    assert_near(rows, wide, steps=4, magnitude=1.0)
    x = torch.zeros(1, 4097, 2, dtype=dtype)
    added = P.add_sinusoidal(x, [1.0])[0]
    assert not (added[1:] == added[:-1]).all(-1).any()
    ids = torch.arange(4097)
    encoded = P.sinusoidal_encoding(ids, [1.0], 2, dtype=dtype)
    assert_same(encoded, added)


@every_dtype
def test_P2_far_integers_stay_apart(dtype):
    positions = torch.tensor([257, 259, 301, 2049, 15962, 32767, 65535, 2**20 + 1])
    out = P.rotary_embedding(unit_rows(8, 2, dtype), [1.0], positions)[0, :, 0]
    want = torch.stack((positions.double().cos(), positions.double().sin()), -1)
    assert_near(out, want, steps=4, magnitude=1.0)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_P2_positions_in_half_precision_are_refused(dtype):
    """257 is already lost in such a tensor; an error says so where a result could only be wrong."""
    x = unit_rows(3, 2)
    with pytest.raises(TypeError, match="position_ids"):
        P.rotary_embedding(x, [1.0], torch.tensor([256.0, 257.0, 258.0]).to(dtype))


def test_P4_autocast_does_not_reach_the_phases():
    positions = torch.tensor([300, 301, 302, 303])
    far = torch.arange(65536, 65536 + 512)
    x = torch.randn(1, 4, 2, 64)
    rope = posenc.RotaryPositionalEmbedding(64)
    want = rope(x, positions)
    encoded = P.sinusoidal_encoding(far, [1.0], 2)
    plain = posenc.SinusoidalPositionalEncoding(8)
    table = plain(torch.zeros(1, 512, 8), far)
    for low in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", low):
            assert_same(rope(x, positions), want)
            assert_same(P.sinusoidal_encoding(far, [1.0], 2), encoded)
            assert_same(plain(torch.zeros(1, 512, 8), far), table)
            learned = torch.tensor(rope.inv_freq, dtype=torch.float64)
            assert_same(P.rotary_embedding(x, learned, positions), want)
    assert len(encoded.unique(dim=0)) == 512
    for position, row in zip(
        positions.tolist(), rope(unit_rows(4, 64), positions)[0, :, 0], strict=True
    ):
        assert abs(row[0] - math.cos(position)) < 1e-6 and abs(row[1] - math.sin(position)) < 1e-6


def test_P4_composite_path_under_autocast():
    """torch.func takes the formula in ATen calls: it is out of autocast's reach as well."""
    x = torch.randn(3, 4, 2, 64)
    freq = reference.rope_inv_freq(64)
    want = torch.vmap(lambda t: P.rotary_embedding(t[None], freq, offset=65536)[0])(x)
    with torch.autocast("cpu", torch.bfloat16):
        got = torch.vmap(lambda t: P.rotary_embedding(t[None], freq, offset=65536)[0])(x)
    assert_same(got, want)


@every_dtype
def test_P5_the_output_has_the_dtype_of_the_input(dtype):
    q, k, v = torch.randn(3, 2, 5, 4, 16).to(dtype).unbind()
    for options in ({}, {"interleaved": False}, {"rotary_dim": 8}, {"attention_factor": 1.3}):
        rope = posenc.RotaryPositionalEmbedding(16, **options)
        a, b = rope.rotate(q, k)
        assert a.dtype == b.dtype == rope.apply_rotary_pos_emb(q).dtype == dtype
        heads = [t.transpose(1, 2) for t in (a, b, v)]
        assert F.scaled_dot_product_attention(*heads).dtype == dtype
    tables = [torch.randn(5, 8) for _ in range(2)]
    assert P.apply_rotary(q, *tables, seq_dim=1).dtype == dtype
    assert P.rotary_embedding(q, torch.rand(8, dtype=torch.float64)).dtype == dtype
    out, lse = P.alibi_attention(q, k, v, [0.5] * 5, return_lse=True)
    assert out.dtype == dtype
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert posenc.LongSequenceRoPE(16)(q).dtype == dtype
    flat = torch.randn(2, 5, 16).to(dtype)
    assert posenc.SinusoidalPositionalEncoding(16)(flat).dtype == dtype
    assert posenc.LearnedPositionalEncoding(9, 16).to(dtype)(flat).dtype == dtype
    assert posenc.add_positional_encoding(flat).dtype == dtype
    assert P.alibi_softmax(torch.randn(1, 2, 3, 3).to(dtype), [0.5, 0.25]).dtype == dtype


def test_P7_a_cast_of_the_module_leaves_the_slopes_alone():
    exact = reference.alibi_slopes(12)
    assert abs(exact[8] - 0.70710678) < 1e-8
    for cast in (
        lambda m: m,
        lambda m: m.half(),
        lambda m: m.bfloat16(),
        lambda m: m.half().float(),
    ):
        layer = cast(posenc.ALiBiAttention(24, 12))
        assert layer.slopes == exact
    # The slope that is used, read off a softmax over zero scores.
    q = torch.zeros(1, 12, 1, 2)
    k = torch.zeros(1, 12, 2, 2)
    v = torch.eye(2).expand(1, 12, 2, 2)
    for dtype in (torch.float16, torch.bfloat16):
        module = posenc.ALiBiAttention(24, 12).to(dtype)
        out = P.alibi_attention(q, k, v, module.slopes)
        used = (out[0, :, 0, 1] / out[0, :, 0, 0]).log()
        torch.testing.assert_close(
            used, torch.tensor(exact, dtype=torch.float32), rtol=0, atol=1e-6
        )


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_P8_the_bias_is_exact_beside_half_precision_scores(dtype):
    """Keys 256 and 257 away with slope 2^-8: the difference of 1/256 survives bf16 inputs."""
    q = torch.zeros(1, 1, 1, 8, dtype=dtype)
    k = torch.zeros(1, 1, 2, 8, dtype=dtype)
    v = torch.zeros(1, 1, 2, 8, dtype=dtype)
    for far in (256, 1024, 65536):
        _, lse = P.alibi_attention(q, k, v, [2.0**-8], offset=far + 1, return_lse=True)
        near, beyond = -(far) / 256, -(far + 1) / 256
        want = math.log(math.exp(0) + math.exp(beyond - near)) + near
        assert abs(lse.item() - want) <= abs(want) * 2.0**-23 + 1e-6
    bias = P.alibi_bias([2.0**-8], 1, 2, offset=257, dtype=torch.float32)
    assert (bias[0, 0, 1] - bias[0, 0, 0]).item() == 1 / 256
    assert P.alibi_bias([0.5], 1, 1, offset=1025).item() == -512.5


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_P8_weights_far_from_the_start(dtype):
    """A long input in half precision: the last row's weights are those of fp64."""
    length, slope = 3000, 2.0**-8
    q = torch.zeros(1, 1, length, 8, dtype=dtype)
    v = torch.linspace(0, 1, length)[:, None].expand(1, 1, length, 8).to(dtype)
    out = P.alibi_attention(q, q, v, [slope], is_causal=True)[0, 0, -1, 0]
    weights = torch.softmax(-slope * torch.arange(length - 1, -1, -1, dtype=torch.float64), 0)
    want = (weights * v[0, 0, :, 0].double()).sum()
    assert abs(out.double() - want) <= torch.finfo(dtype).eps / 2 * want + 2**-14


def test_P10_integer_positions_give_a_floating_encoding():
    sines = torch.tensor([0, 0.8415, 0.9093, 0.1411, -0.7568, -0.9589, -0.2794, 0.6570])
    for integer in (torch.int64, torch.int32, torch.int16, torch.uint8):
        out = P.sinusoidal_encoding(torch.arange(8, dtype=integer), [1.0], 2)
        assert out.dtype == torch.get_default_dtype()
        torch.testing.assert_close(out[:, 0], sines, rtol=0, atol=6e-5)
        x = torch.zeros(1, 8, 2)
        torch.testing.assert_close(
            P.add_sinusoidal(x, [1.0], torch.arange(8, dtype=integer))[0], out
        )
    embedding = posenc.TransformerEmbedding(10, 2)
    assert embedding(torch.arange(8)[None]).dtype == torch.float32
    assert posenc.get_positional_encoding(8, 2).dtype == torch.float32


def test_P11_no_road_to_a_dtype_changes_the_result():
    builders = {
        "rotary": lambda: posenc.RotaryPositionalEmbedding(64),
        "sinusoidal": lambda: posenc.SinusoidalPositionalEncoding(64),
        "long": lambda: posenc.LongSequenceRoPE(64),
    }
    for name, build in builders.items():
        cast = build().to(torch.bfloat16)
        torch.set_default_dtype(torch.bfloat16)
        born = build()
        torch.set_default_dtype(torch.float32)
        with torch.device("meta"):
            empty = build()
        made = empty.to_empty(device="cpu").bfloat16()
        copied = copy.deepcopy(born)
        x = torch.randn(1, 9, 2, 64) if name != "sinusoidal" else torch.randn(1, 9, 64)
        for dtype in (torch.bfloat16, torch.float32):
            outs = [
                m(x.to(dtype), None, offset=100_000) if name != "long" else m(x.to(dtype))
                for m in (cast, born, made, copied)
            ]
            for out in outs[1:]:
                assert_same(out, outs[0], name)


def test_P13_very_long_positions():
    f = 10 ** (-1 / 4)
    for position in (1_048_575, 10_000_019, 2**31 - 1, 2**40 + 1):
        angle = position * f
        out = P.rotary_embedding(torch.tensor([[[1.0, 0.0]]]), [f], offset=position)[0, 0]
        # The product of two doubles holds the phase to 2^-53 of its size.
        bound = 1e-6 + angle * 2.0**-52
        assert abs(out[0] - math.cos(angle)) < bound and abs(out[1] - math.sin(angle)) < bound
        encoded = P.sinusoidal_encoding(torch.tensor([position]), [f], 2)[0]
        assert abs(encoded[0] - math.sin(angle)) < bound
