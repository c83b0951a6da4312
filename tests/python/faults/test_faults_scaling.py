"""S: families of frequency scaling. A test has the name of its fault."""

import math

import posenc
import posenc.functional as P
import pytest
import reference
import torch
from samples.compare import assert_same, needs_torchscript


def rope(width, kind, base=10000.0, **keys):
    return posenc.RotaryPositionalEmbedding(width, base=base, scaling={"rope_type": kind, **keys})


def yarn(width, base, trained, factor, **keys):
    return rope(
        width, "yarn", base, factor=factor, original_max_position_embeddings=trained, **keys
    )


def test_S5_longrope_s_amplitude():
    lists = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    trained = {"original_max_position_embeddings": 4096}
    assert (
        abs(rope(8, "longrope", factor=32.0, **lists, **trained).attention_factor - 1.190238) < 1e-6
    )
    assert rope(8, "longrope", factor=1.0, **lists, **trained).attention_factor == 1.0
    given = rope(8, "longrope", factor=32.0, attention_factor=1.5, **lists, **trained)
    assert given.attention_factor == 1.5


def test_S6_and_S8_yarn_s_amplitude():
    for factor, want in ((16.0, 1.277259), (4.0, 1.138629), (40.0, 1.368888)):
        assert abs(yarn(64, 1e4, 4096, factor).attention_factor - want) < 1e-6
    assert yarn(64, 1e4, 4096, 16.0, mscale=1.0, mscale_all_dim=1.0).attention_factor == 1.0
    for keys in ({}, {"mscale": 1.0, "mscale_all_dim": 1.0}, {"mscale": 0.7}):
        assert yarn(64, 1e4, 4096, 16.0, attention_factor=1.1, **keys).attention_factor == 1.1
    assert yarn(64, 1e4, 4096, 64.0, attention_factor=1.415888).attention_factor == 1.415888


@pytest.mark.parametrize("interleaved", (True, False))
def test_S9_the_amplitude_scales_rotated_channels_alone(interleaved):
    x = torch.randn(1, 3, 2, 8)
    before = x.clone()
    options = {"rotary_dim": 4, "interleaved": interleaved}
    plain = posenc.RotaryPositionalEmbedding(8, **options)(x)
    halved = posenc.RotaryPositionalEmbedding(8, attention_factor=0.5, **options)(x)
    torch.testing.assert_close(halved[..., :4], plain[..., :4] / 2)
    assert_same(halved[..., 4:], x[..., 4:])
    assert_same(x, before)


def multipliers(module, base):
    width = 2 * len(module.inv_freq)
    plain = reference.rope_inv_freq(width, base)
    return [f / p for f, p in zip(module.inv_freq, plain, strict=True)]


def test_S10_the_range_is_rounded_unless_the_config_says_otherwise():
    rounded = multipliers(yarn(64, 150000.0, 4096, 32.0), 150000.0)
    exact = multipliers(yarn(64, 150000.0, 4096, 32.0, truncate=False), 150000.0)
    assert abs(rounded[9] - 0.903125) < 1e-6 and abs(exact[9] - 0.905551) < 1e-6
    assert abs(rounded[17] - 0.128125) < 1e-6 and abs(exact[17] - 0.072688) < 1e-6
    tiny = yarn(8, 1e4, 64, 4.0)
    torch.testing.assert_close(multipliers(tiny, 1e4), [1.0, 0.625, 0.25, 0.25], rtol=1e-9, atol=0)
    torch.testing.assert_close(tiny.inv_freq, [1.0, 0.0625, 0.0025, 0.00025], rtol=1e-9, atol=0)
    # The top of the range is clamped to d - 1, not to d / 2 - 1.
    d, raw_high = 64, 64 * math.log(131072 / (2 * math.pi)) / (2 * math.log(1e4))
    assert abs(raw_high - 34.5546) < 1e-3
    long = multipliers(yarn(64, 1e4, 131072, 4.0), 1e4)
    low = math.floor(d * math.log(131072 / (32 * 2 * math.pi)) / (2 * math.log(1e4)))
    gamma = 1 - (31 - low) / (math.ceil(raw_high) - low)
    assert abs(long[31] - ((1 - gamma) / 4 + gamma)) < 1e-9


def test_S11_swapped_betas_are_an_error():
    yarn(64, 150000.0, 4096, 32.0, beta_fast=32.0, beta_slow=1.0)
    with pytest.raises(ValueError, match="beta"):
        yarn(64, 150000.0, 4096, 32.0, beta_fast=1.0, beta_slow=32.0)


def test_S12_the_table_s_size_is_no_trained_length():
    keys = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}
    modules = [
        posenc.RotaryPositionalEmbedding(64, max_seq_len=n, scaling=keys) for n in (4096, 163840)
    ]
    assert modules[0].inv_freq == modules[1].inv_freq


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8,
    "low_freq_factor": 1,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_S14_dictionaries_as_they_are_found():
    one = posenc.RotaryPositionalEmbedding(8, scaling={"type": "linear", "factor": 2})
    two = posenc.RotaryPositionalEmbedding(8, scaling={"rope_type": "linear", "factor": 2.0})
    assert one.inv_freq == two.inv_freq == [f / 2 for f in reference.rope_inv_freq(8)]
    assert len(posenc.RotaryPositionalEmbedding(8, base=5e5, scaling=LLAMA3).inv_freq) == 4
    with pytest.raises(ValueError, match="foo"):
        rope(8, "foo")
    same = {"type": "linear", "rope_type": "linear", "factor": 2.0}
    assert posenc.RotaryPositionalEmbedding(8, scaling=same).inv_freq == one.inv_freq
    with pytest.raises(ValueError):
        posenc.RotaryPositionalEmbedding(8, scaling={**same, "type": "yarn"})


def test_S15_every_key_is_used_or_refused():
    x = torch.randn(1, 1, 2, 8)
    scaled, plain = rope(8, "linear", factor=8.0), posenc.RotaryPositionalEmbedding(8)
    torch.testing.assert_close(scaled(x, None, 8), plain(x, None, 1), rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="factr"):
        rope(8, "linear", factor=2.0, factr=3.0)
    with pytest.raises(TypeError):
        posenc.RotaryPositionalEmbedding(8, factr=3.0)
    for kind in ("linear", "yarn", "llama3", "longrope", "dynamic"):
        with pytest.raises(ValueError, match=r"factor|original"):
            rope(8, kind)


class TestFrequenciesThatFollowTheLength:
    keys: dict = {"factor": 2.0, "original_max_position_embeddings": 8}  # noqa: RUF012

    @needs_torchscript
    def test_S1_and_S3_the_base_depends_on_the_current_length_only(self):
        module = rope(4, "dynamic", **self.keys)
        x = torch.randn(1, 16, 1, 4)
        want = {16: 1 / 300, 8: 1 / 100, 4: 1 / 100}
        first = module(x[:, :8])
        for length in (16, 8, 4, 16):
            out = module(x[:, :length])
            expected = P.rotary_embedding(x[:, :length], [1.0, want[length]])
            torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)
        assert_same(module(x[:, :8]), first)
        scripted = torch.jit.script(module)
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=True)
        for length in (16, 8, 16):
            for other in (scripted, compiled):
                torch.testing.assert_close(other(x[:, :length]), module(x[:, :length]))

    def test_S2_a_cache_of_rotated_keys_refuses_changing_frequencies(self):
        """Old keys with the old base and new queries with the new one never meet."""
        layer = posenc.RoPEAttention(
            8, 2, is_causal=True, scaling={"rope_type": "dynamic", **self.keys}
        )
        x = torch.randn(1, 16, 8)
        assert layer(x).shape == x.shape
        with pytest.raises((ValueError, NotImplementedError, RuntimeError)):
            _, cache = layer.forward_cached(x[:, :7])
            for t in range(7, 16):
                _, cache = layer.forward_cached(x[:, t : t + 1], cache)

    def test_S2_the_angle_between_an_old_key_and_a_new_query(self):
        """Query 15, key 3, after growing from 8 to 16: 0.04 where both turn by 1/300; the mix
        of an old key and a new query gives 15/300 - 3/100 = 0.02."""
        module = rope(4, "dynamic", **self.keys)
        unit = torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.float64).expand(1, 1, 1, 4)
        assert module.inv_freq_at(8)[1] == pytest.approx(1 / 100, rel=1e-14)
        assert module.inv_freq_at(16)[1] == pytest.approx(1 / 300, rel=1e-14)
        query = P.rotary_embedding(unit, module.inv_freq_at(16), offset=15)
        key = P.rotary_embedding(unit, module.inv_freq_at(8), offset=3)

        def angle(k):
            return torch.acos((query * k).sum()).item()

        assert angle(key) == pytest.approx(0.02, abs=1e-9)
        moved = module.re_rotate(key, module.inv_freq_at(8), module.inv_freq_at(16), offset=3)
        assert angle(moved) == pytest.approx(0.04, abs=1e-9)

    @pytest.mark.parametrize("package", (posenc, posenc.cpp), ids=("python", "cpp"))
    def test_S2_a_cache_that_is_moved_along_equals_the_full_forward(self, package):
        """Rows of lengths 5, 9 and 12 grow by a token at a time: every row's scores, over keys that
        are moved to the frequencies of its own length, are those of its own full forward."""
        module = package.RotaryPositionalEmbedding(8, scaling={"rope_type": "dynamic", **self.keys})
        q, k = torch.randn(2, 3, 16, 2, 8, dtype=torch.float64).unbind(0)
        lengths = torch.tensor([5, 9, 12])
        width = 12
        at = torch.arange(width).expand(3, width)
        cached = P.rotary_embedding(k[:, :width], module.inv_freq_at(lengths), at)
        for _ in range(4):
            old, new = module.inv_freq_at(lengths), module.inv_freq_at(lengths + 1)
            # What lies past a row's end is no token yet; its place is filled below.
            cached = torch.cat((cached, torch.zeros_like(cached[:, :1])), 1)
            at = torch.arange(cached.shape[1]).expand(3, -1)
            cached = module.re_rotate(cached, old, new, at)
            rows = torch.arange(3)
            place = P.positions_from_offsets(lengths, 1)
            cached[rows, lengths] = P.rotary_embedding(k[rows, lengths][:, None], new, place)[:, 0]
            query = P.rotary_embedding(q[rows, lengths][:, None], new, place)[:, 0]
            lengths = lengths + 1
            for b, n in enumerate(lengths.tolist()):
                scores = torch.einsum("hd,lhd->hl", query[b], cached[b, :n])
                full_q, full_k = module.rotate(q[b : b + 1, :n], k[b : b + 1, :n])
                want = torch.einsum("hd,lhd->hl", full_q[0, -1], full_k[0])
                torch.testing.assert_close(scores, want, rtol=0, atol=1e-11)
