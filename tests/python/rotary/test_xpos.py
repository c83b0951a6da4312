"""xPos: the scale cancels where it must, fades where it must, and never leaves the dtype unseen."""

import math

import posenc
import posenc.functional as P
import pytest
import reference
import torch
from samples.compare import FLOATS, assert_same, needs_torchscript, unit

FREQ = reference.rope_inv_freq(64)
dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d)[6:])


def scores(q, k):
    """(B, L, H, D) twice -> (B, H, L, S), in float64."""
    return torch.einsum("blhd,bshd->bhls", q.double(), k.double())


def ones_of_pair(i, n=2):
    x = torch.zeros(1, 1, 1, 2 * n, dtype=torch.float64)
    x[..., 2 * i] = 1
    return x


def test_L12_the_scale_is_that_of_the_fault():
    """d = 4: zeta [0.285714, 0.642857]; q and k cancel at one position, fade over a distance."""
    for i, zeta in enumerate((0.285714, 0.642857)):
        for m, n in ((5, 5), (700, 700), (900, 100), (512, 0)):
            q = P.xpos_embedding(ones_of_pair(i), [1.0, 0.01], offset=m)
            k = P.xpos_embedding(ones_of_pair(i), [1.0, 0.01], offset=n, is_key=True)
            product = q.norm() * k.norm()
            assert product.item() == pytest.approx(zeta ** ((m - n) / 512), rel=1e-5)
            dot = (q * k).sum().item()
            angle = math.cos((m - n) * (1.0, 0.01)[i])
            assert dot == pytest.approx(zeta ** ((m - n) / 512) * angle, rel=1e-5)


def test_a_large_enough_scale_base_is_plain_rope():
    x = torch.randn(2, 9, 3, 64)
    torch.testing.assert_close(
        P.xpos_embedding(x, FREQ, scale_base=1e12), P.rotary_embedding(x, FREQ)
    )


@pytest.mark.parametrize("centre", (-700.0, 12.5, 4000.0))
def test_the_centre_cancels(centre):
    q, k = torch.randn(2, 1, 70, 2, 64, dtype=torch.float64).unbind()
    want = scores(*posenc.XPosRotaryEmbedding(64).rotate(q, k, None, 100))
    got = scores(*posenc.XPosRotaryEmbedding(64, centre=centre).rotate(q, k, None, 100))
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@dtypes
def test_cached_keys_stay_right(dtype):
    """Prefill, then token by token: the bits of one pass (L12: the scale follows the offset)."""
    rope = posenc.XPosRotaryEmbedding(64)
    q, k = torch.randn(2, 1, 90, 2, 64, dtype=torch.float64).to(dtype).unbind()
    q_all, k_all = rope.rotate(q, k)
    cache, queries = [], []
    for begin, end in ((0, 60), *((t, t + 1) for t in range(60, 90))):
        q_new, k_new = rope.rotate(q[:, begin:end], k[:, begin:end], None, begin)
        cache.append(k_new)
        queries.append(q_new)
    assert_same(torch.cat(cache, 1), k_all)
    assert_same(torch.cat(queries, 1), q_all)
    order = torch.randperm(90)
    assert_same(rope(k[:, order], order, 0, True), k_all[:, order])


@dtypes
def test_the_relative_error_is_small_near_both_ends(dtype):
    """Where the scale is 2^110 or 2^-110, each channel is as exact as at the centre."""
    reach = math.floor(P.xpos_reach(dtype, 64.0))
    x = torch.randn(1, 1, 2, 64, dtype=torch.float64).to(dtype)
    plain = torch.from_numpy(
        reference.rotary_embedding(x.double().numpy(), FREQ, offset=reach)
    ).reshape(2, 32, 2)
    powers = [reach / 64.0 * math.log2(reference.xpos_zeta(i, 64)) for i in range(32)]
    for is_key in (False, True):
        out = P.xpos_embedding(x, FREQ, offset=reach, scale_base=64.0, is_key=is_key)
        assert torch.isfinite(out).all()
        size = x.double().reshape(2, 32, 2).norm(dim=-1)
        for i, power in enumerate(powers):
            got = out.double().reshape(2, 32, 2)[:, i] * 2.0 ** (power if is_key else -power)
            error = (got - plain[:, i]).abs().amax(-1)
            bound = 2 * unit(dtype) + 2**-22
            if dtype == torch.float64:  # a phase of that size is off by so much
                bound = 2**-40 + 2 * reach * 2**-53
            assert (error <= bound * size[:, i]).all()


LIMITS = {torch.float32: 31161, torch.bfloat16: 31161, torch.float16: 2266, torch.float64: 283_286}


@dtypes
class TestL12TheReach:
    """Past it an error names the position, the limit and the remedy; nothing is inf, 0 or NaN."""

    @staticmethod
    def check(error, dtype, position):
        text = str(error.value)
        assert str(LIMITS[dtype]) in text and str(position) in text
        assert "scale_base" in text and "centre" in text and "xpos_embedding: expected" in text

    def test_L12_the_numbers(self, dtype):
        assert math.floor(P.xpos_reach(dtype)) == LIMITS[dtype]
        assert math.floor(P.xpos_reach(dtype, 1024.0)) in (2 * LIMITS[dtype], 2 * LIMITS[dtype] + 1)

    def test_L12_a_range(self, dtype):
        x, limit = torch.randn(1, 4, 1, 8).to(dtype), LIMITS[dtype]
        freq = reference.rope_inv_freq(8)
        for centre in (0.0, 1000.0):
            for is_key in (False, True):
                at = int(centre) + limit - 3
                out = P.xpos_embedding(x, freq, offset=at, centre=centre, is_key=is_key)
                assert torch.isfinite(out).all() and (out != 0).all()
                with pytest.raises(ValueError) as error:
                    P.xpos_embedding(x, freq, offset=at + 1, centre=centre, is_key=is_key)
                self.check(error, dtype, int(centre) + limit + 1)
                P.xpos_embedding(x, freq, offset=int(centre) - limit, centre=centre)
                with pytest.raises(ValueError) as error:
                    P.xpos_embedding(x, freq, offset=int(centre) - limit - 1, centre=centre)
                self.check(error, dtype, int(centre) - limit - 1)

    def test_L12_positions_of_a_tensor(self, dtype):
        x, limit = torch.randn(2, 3, 1, 8).to(dtype), LIMITS[dtype]
        freq = reference.rope_inv_freq(8)
        good = torch.tensor([[0, 5, limit], [-limit, 1, 2]])
        assert torch.isfinite(P.xpos_embedding(x, freq, good, is_key=True)).all()
        for bad, position in ((good * 2, 2 * limit), (good - 1, -limit - 1)):
            with pytest.raises(ValueError) as error:
                P.xpos_embedding(x, freq, bad)
            assert str(LIMITS[dtype]) in str(error.value)
            del position
        with pytest.raises(ValueError) as error:
            P.xpos_embedding(x, freq, torch.tensor([0, 1, limit]), offset=7)
        self.check(error, dtype, limit + 7)
        with pytest.raises(ValueError, match="nan"):
            P.xpos_embedding(x, freq, torch.tensor([0.0, float("nan"), 1.0]))

    def test_L12_the_remedies_work(self, dtype):
        """A larger scale_base, or another centre, serve the position that was refused."""
        x, far = torch.randn(1, 4, 1, 8).to(dtype), 4 * LIMITS[dtype]
        freq = reference.rope_inv_freq(8)
        for options in ({"scale_base": 4096.0}, {"centre": float(far)}):
            out = P.xpos_embedding(x, freq, offset=far, **options)
            assert torch.isfinite(out).all() and (out != 0).all()


@needs_torchscript
def test_L12_compiled_and_scripted_code_checks_as_well():
    rope = posenc.XPosRotaryEmbedding(8)
    x, good, bad = torch.randn(1, 2, 1, 8), torch.tensor([0, 9]), torch.tensor([0, 10**6])
    compiled = torch.compile(rope, backend="aot_eager", fullgraph=True)
    program = torch.export.export(rope, (x, good)).module()
    traced = torch.jit.trace(posenc.XPosRotaryEmbedding(8), (x, good))
    for each in (compiled, program, torch.jit.script(rope), traced):
        assert_same(each(x, good), rope(x, good))
        with pytest.raises((ValueError, RuntimeError), match="1000000"):
            each(x, bad)
    torch._dynamo.reset()
    again = torch.compile(rope, backend="aot_eager", fullgraph=True, dynamic=True)
    assert_same(again(x, None, 7), rope(x, None, 7))
    for offset in (10**6, 31161):
        with pytest.raises((ValueError, RuntimeError), match="31161"):
            again(x, None, offset)


def test_L12_vmap_over_positions_checks_as_well():
    x = torch.randn(3, 1, 2, 1, 8)
    positions = torch.tensor([[0, 1], [5, 9], [7, 3]])
    freq = reference.rope_inv_freq(8)

    def one(v, p):
        return P.xpos_embedding(v, freq, p)

    want = torch.stack([one(v, p) for v, p in zip(x, positions, strict=True)])
    torch.testing.assert_close(torch.vmap(one)(x, positions), want)
    with pytest.raises(ValueError, match="within 31161 of the centre"):
        torch.vmap(one)(x, positions + 10**6 - 4)


def test_peers_agree_up_to_their_centre():
    """x-transformers and rotary-embedding-torch, centred on half the length, give the same q.k."""
    peer = pytest.importorskip("rotary_embedding_torch").RotaryEmbedding(64, use_xpos=True)
    other = pytest.importorskip("x_transformers.x_transformers")
    length = 96
    q, k = torch.randn(2, 1, length, 2, 64).unbind()
    ours = posenc.XPosRotaryEmbedding(64)
    want = scores(*ours.rotate(q, k))
    q1, k1 = (
        t.transpose(1, 2)
        for t in peer.rotate_queries_and_keys(q.transpose(1, 2), k.transpose(1, 2))
    )
    torch.testing.assert_close(scores(q1, k1), want, rtol=0, atol=2e-4)
    freqs, scale = other.RotaryEmbedding(64, use_xpos=True).forward_from_seq_len(length)
    heads_first = [
        other.apply_rotary_pos_emb(t.transpose(1, 2), freqs, s).transpose(1, 2)
        for t, s in ((q, scale), (k, 1 / scale))
    ]
    torch.testing.assert_close(scores(*heads_first), want, rtol=0, atol=2e-4)
    # With their centre the tensors themselves agree.
    centred = posenc.XPosRotaryEmbedding(64, centre=length // 2).rotate(q, k)
    for a, b in zip(centred, (q1, k1), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=2e-5)


def test_the_published_formula():
    """torchscale: cos, sin times scale ** (position / 512), counted from minus half the length,
    the keys with its inverse."""
    length, dim = 40, 16
    half = -(length // 2)
    zeta = (torch.arange(0, dim, 2, dtype=torch.float64) + 0.4 * dim) / (1.4 * dim)
    scale = zeta ** (torch.arange(half, half + length, dtype=torch.float64)[:, None] / 512)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * torch.tensor(
        reference.rope_inv_freq(dim), dtype=torch.float64
    )

    def turn(x, factor):
        cos, sin = (angle.cos() * factor)[None, :, None], (angle.sin() * factor)[None, :, None]
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)

    q, k = torch.randn(2, 1, length, 2, dim, dtype=torch.float64).unbind()
    got = posenc.XPosRotaryEmbedding(dim).rotate(q, k)
    torch.testing.assert_close(
        scores(*got), scores(turn(q, scale), turn(k, 1 / scale)), rtol=1e-11, atol=1e-11
    )


def test_grouped_heads_rotate_together():
    rope = posenc.XPosRotaryEmbedding(16, seq_dim=2, interleaved=False)
    q, k = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 5, 16)
    ids = torch.randint(0, 99, (2, 5))
    q_out, k_out = rope.rotate(q, k, ids, 3)
    assert_same(q_out, rope(q, ids, 3))
    assert_same(k_out, rope(k, ids, 3, True))
    for cpp in (posenc.cpp.XPosRotaryEmbedding(16, seq_dim=2, interleaved=False),):
        assert_same(cpp.rotate(q, k, ids, 3), (q_out, k_out))


@pytest.mark.parametrize(
    ("options", "text"),
    (
        ({"scale_base": -1.0}, "scale_base > 0, got -1"),
        ({"scale_base": float("inf")}, "finite scale_base"),
        ({"gamma": 0.0}, "gamma > 0, got 0"),
        ({"centre": float("nan")}, "finite centre"),
        ({"rotary_start": 4}, "head_dim >= 12"),
        ({"position_ids": torch.zeros(3)}, "position_ids of shape"),
        ({"seq_dim": 3}, "time axis"),
    ),
    ids=str,
)
def test_errors(options, text):
    with pytest.raises(ValueError, match=f"xpos_embedding: expected.*{text}"):
        P.xpos_embedding(torch.randn(1, 2, 1, 8), reference.rope_inv_freq(8), **options)
    with pytest.raises(TypeError, match="xpos_embedding: expected x of dtype"):
        P.xpos_embedding(torch.ones(1, 2, 1, 8).long(), reference.rope_inv_freq(8))


def test_layers_name_themselves():
    for package in (posenc, posenc.cpp):
        with pytest.raises(ValueError, match=r"XPosRotaryEmbedding: expected.*even"):
            package.XPosRotaryEmbedding(7)
        with pytest.raises(ValueError, match="head_dim = 8"):
            package.XPosRotaryEmbedding(8)(torch.randn(1, 2, 1, 16))
