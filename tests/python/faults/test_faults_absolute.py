"""E: absolute encodings. A test has the name of its fault."""

import posenc
import posenc.functional as P
import pytest
import torch
from samples.compare import assert_same


def row(values):
    return torch.tensor(values, dtype=torch.float32)


def test_E2_both_layouts_and_the_third_spacing():
    alternating = row([0.841471, 0.540302, 0.010000, 0.999950])
    concatenated = row([0.841471, 0.010000, 0.540302, 0.999950])
    spaced = row([0.841471, 0.000100, 0.540302, 1.000000])
    x = torch.zeros(1, 1, 4)
    near = {"rtol": 0, "atol": 1e-6}
    plain = posenc.SinusoidalPositionalEncoding(4)
    halves = posenc.SinusoidalPositionalEncoding(4, interleaved=False)
    torch.testing.assert_close(plain(x, None, 1)[0, 0], alternating, **near)
    torch.testing.assert_close(halves(x, None, 1)[0, 0], concatenated, **near)
    torch.testing.assert_close(posenc.get_positional_encoding(2, 4)[1], alternating, **near)
    one = torch.tensor([1])
    torch.testing.assert_close(
        P.sinusoidal_encoding(one, [1.0, 1e-4], 4, interleaved=False)[0], spaced, **near
    )
    tokens = posenc.TransformerEmbedding(3, 4, interleaved=False)
    with torch.no_grad():
        tokens.token_embedding.weight.zero_()
    torch.testing.assert_close(tokens(one[None], None, 1)[0, 0].detach(), concatenated, **near)


def test_E3_the_embedding_is_scaled_and_not_the_encoding():
    scaled, unscaled = row([2, 5, 6, 9]), row([1, 3, 3, 5])
    for options, want in (({}, scaled), ({"scale": 2.0}, scaled), ({"scale": 1.0}, unscaled)):
        layer = posenc.TransformerEmbedding(1, 4, **options)
        with torch.no_grad():
            layer.token_embedding.weight.copy_(row([[1, 2, 3, 4]]))
        assert_same(layer(torch.zeros(1, 1).long())[0, 0].detach(), want)
    x = row([[[1, 2, 3, 4]]])
    assert_same(posenc.SinusoidalPositionalEncoding(4)(x)[0, 0], unscaled)
    assert_same(posenc.SinusoidalPositionalEncoding(4, scale=2.0)(x)[0, 0], scaled)


def test_E5_positions_after_the_padding_index():
    assert P.positions_from_input_ids(torch.tensor([5, 6, 1, 1]), 1).tolist() == [2, 3, 1, 1]
    assert P.positions_from_input_ids(torch.tensor([[4, 5, 6]]), 3).tolist() == [[4, 5, 6]]
    ids = P.positions_from_input_ids(torch.tensor([[4, 5, 6]]), 3)
    seven = posenc.LearnedPositionalEncoding(7, 2)
    assert_same(
        seven(torch.zeros(1, 3, 2), ids)[0].detach(),
        seven.positional_embeddings.weight[4:7].detach(),
    )
    with pytest.raises(IndexError, match="6"):
        posenc.LearnedPositionalEncoding(6, 2)(torch.zeros(1, 3, 2), ids)
    offset = posenc.LearnedPositionalEncoding(3, 2, position_offset=4)
    assert offset.positional_embeddings.weight.shape == (7, 2)
    assert_same(
        offset(torch.zeros(1, 3, 2))[0].detach(),
        offset.positional_embeddings.weight[4:7].detach(),
    )
    with pytest.raises(IndexError):
        offset(torch.zeros(1, 4, 2))


def test_E6_a_longer_input_keeps_the_dtype():
    for dtype in (torch.float16, torch.bfloat16):
        layers = [
            posenc.SinusoidalPositionalEncoding(8).to(dtype),
            posenc.LearnedPositionalEncoding(9, 8).to(dtype),
        ]
        tokens = posenc.TransformerEmbedding(5, 8, max_len=4).to(dtype)
        for length in (4, 9, 4):
            for layer in layers:
                assert layer(torch.zeros(1, length, 8, dtype=dtype)).dtype == dtype
            assert tokens(torch.zeros(1, length).long()).dtype == dtype


def test_E8_adding_and_encoding_are_two_functions():
    x = torch.randn(2, 3, 4)
    layer = posenc.SinusoidalPositionalEncoding(4)
    assert layer(x).shape == x.shape
    encoded = P.sinusoidal_encoding(torch.arange(3), layer.inv_freq, 4)
    assert encoded.shape == (3, 4)
    torch.testing.assert_close(layer(x), x + encoded)
    assert P.sinusoidal_encoding(torch.zeros(2, 5), layer.inv_freq, 4).shape == (2, 5, 4)
    assert posenc.add_positional_encoding(x).shape == x.shape


@pytest.mark.parametrize("build", (
    lambda **o: posenc.SinusoidalPositionalEncoding(4, **o),
    lambda **o: posenc.LearnedPositionalEncoding(9, 4, **o),
), ids=("sinusoidal", "learned"))  # fmt: skip
def test_E9_time_is_the_named_axis(build):
    torch.manual_seed(0)
    batch_first = build()
    torch.manual_seed(0)
    time_first = build(seq_dim=0)
    for B, T in ((2, 3), (3, 3)):
        out = batch_first(torch.zeros(B, T, 4))
        assert_same(out, out[:1].expand_as(out))
        for a in range(T):
            for b in range(a):
                assert not torch.equal(out[:, a], out[:, b])
        assert_same(time_first(torch.zeros(T, B, 4)).transpose(0, 1), out)
