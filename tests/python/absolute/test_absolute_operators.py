"""Added encodings: exact rows, tables with limits, and what their gradients gather."""

from typing import ClassVar

import posenc
import posenc.functional as P
import pytest
import reference
import torch
from samples.compare import FLOATS, assert_near, assert_same

dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d)[6:])
FREQ = reference.sinusoidal_inv_freq(64)


def test_the_article_s_figures():
    table = posenc.get_positional_encoding(100, 128)
    assert table.shape == (100, 128) and table.min() >= -1 and table.max() <= 1
    cosine = torch.nn.functional.cosine_similarity
    assert abs(cosine(table[:-1], table[1:], dim=-1).mean() - 0.970) < 6e-4
    for distance, want in ((1, 0.970), (5, 0.737), (10, 0.669), (20, 0.608), (50, 0.546)):
        assert abs(cosine(table[0], table[distance], dim=0) - want) < 6e-4
    want = reference.sinusoidal_encoding(torch.arange(100), reference.sinusoidal_inv_freq(128), 128)
    assert_near(table, want, steps=2, magnitude=1.0)


def test_adding_it_has_the_article_s_limit():
    x = torch.randn(2, 9, 6)
    want = x + posenc.get_positional_encoding(9, 6)
    torch.testing.assert_close(posenc.add_positional_encoding(x, max_seq_len=9), want)
    with pytest.raises(ValueError) as error:
        posenc.add_positional_encoding(x, max_seq_len=8)
    assert "8" in str(error.value) and "9" in str(error.value)


@dtypes
@pytest.mark.parametrize("interleaved", (True, False))
def test_one_row_for_a_position_on_every_path(dtype, interleaved):
    """Encoding alone, added by range, offset or ids, or with tokens: the same bits."""
    layout = {"interleaved": interleaved}
    ids = torch.arange(100, 250)
    rows = P.sinusoidal_encoding(ids, FREQ, 64, dtype=dtype, **layout)
    zero = torch.zeros(2, 150, 64, dtype=dtype)
    for out in (
        P.add_sinusoidal(zero, FREQ, offset=100, **layout),
        P.add_sinusoidal(zero, FREQ, ids, **layout),
        P.add_sinusoidal(zero, FREQ, ids.expand(2, 150).to(torch.int32), **layout),
        P.embed_tokens(torch.zeros(2, 150).long(), zero[0], FREQ, offset=100, **layout),
        P.embed_tokens(torch.zeros(2, 150).long(), zero[0], FREQ, ids, **layout),
    ):
        assert_same(out, rows.expand(2, 150, 64).contiguous())
    parts = [
        P.add_sinusoidal(zero[:, s : s + 7], FREQ, offset=100 + s, **layout)
        for s in range(0, 150, 7)
    ]
    assert_same(torch.cat(parts, 1), rows.expand(2, 150, 64).contiguous())


def test_the_gradient_of_a_table_gathers_every_use():
    weight = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    ids = torch.tensor([[0, 0, 5], [5, 0, 2]])
    x = torch.zeros(2, 3, 4, dtype=torch.float64)
    upstream = torch.randn_like(x)
    got = torch.autograd.grad(P.add_positions(x, weight, ids), weight, upstream)[0]
    want = torch.autograd.grad(torch.nn.functional.embedding(ids, weight), weight, upstream)[0]
    torch.testing.assert_close(got, want)
    got = torch.autograd.grad(P.embed_tokens(ids, weight, [1.0, 0.1], scale=3.0), weight, upstream)[
        0
    ]
    torch.testing.assert_close(got, 3 * want)
    padded = P.embed_tokens(ids, weight, [1.0, 0.1], padding_idx=5)
    got = torch.autograd.grad(padded, weight, upstream)[0]
    assert not got[5].any() and torch.equal(got[[0, 2]], want[[0, 2]])
    plain = P.embed_tokens(ids, weight, [1.0, 0.1])
    assert_same(padded, plain, "padding_idx stops a gradient, it changes no value")


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_many_uses_of_a_row_are_summed_in_fp32(dtype):
    """1000 gradients of 1: summed one by one in bf16 they would stop at 256."""
    weight = torch.zeros(2, 8, dtype=dtype, requires_grad=True)
    ids = torch.zeros(1, 1000).long()
    x = torch.zeros(1, 1000, 8, dtype=dtype)
    for out in (P.add_positions(x, weight, ids), P.embed_tokens(ids, weight, [1.0] * 4)):
        assert (torch.autograd.grad(out.sum(), weight)[0][0] == 1000).all()
    table = torch.zeros(1, 8, dtype=dtype, requires_grad=True)
    many = torch.zeros(1000, 1, 8, dtype=dtype)
    assert (torch.autograd.grad(P.add_positions(many, table).sum(), table)[0] == 1000).all()


def test_padding_of_the_token_table():
    layer = posenc.TransformerEmbedding(7, 4, padding_idx=2)
    assert not layer.token_embedding.weight[2].any()
    layer(torch.tensor([[2, 3, 2]])).square().sum().backward()
    grad = layer.token_embedding.weight.grad
    assert not grad[2].any() and grad[3].any()


class TestErrors:
    x = torch.randn(2, 5, 6)
    ids = torch.zeros(2, 5).long()
    weight = torch.randn(9, 6)
    freq = reference.sinusoidal_inv_freq(6)

    CASES: ClassVar = {
        "add_sinusoidal": (
            (ValueError, lambda s: P.add_sinusoidal(s.x, s.freq[:1]), ("6", "2")),
            (TypeError, lambda s: P.add_sinusoidal(s.x.long(), s.freq), ("Long",)),
            (
                ValueError,
                lambda s: P.add_sinusoidal(s.x, s.freq, s.ids[:, :4]),
                ("position", "4", "5"),
            ),
            (ValueError, lambda s: P.add_sinusoidal(s.x, s.freq, seq_dim=2), ("seq_dim",)),
        ),
        "add_positions": (
            (ValueError, lambda s: P.add_positions(s.x, s.weight[:, :5]), ("6", "5")),
            (ValueError, lambda s: P.add_positions(s.x, s.weight[0]), ("weight",)),
            (TypeError, lambda s: P.add_positions(s.x, s.weight.double()), ("weight",)),
            (TypeError, lambda s: P.add_positions(s.x, s.weight, s.ids / 2), ("position",)),
            (IndexError, lambda s: P.add_positions(s.x, s.weight, s.ids + 9), ("9",)),
            (IndexError, lambda s: P.add_positions(s.x, s.weight, offset=5), ("9",)),
        ),
        "embed_tokens": (
            (IndexError, lambda s: P.embed_tokens(s.ids + 9, s.weight, s.freq), ("9",)),
            (IndexError, lambda s: P.embed_tokens(s.ids - 1, s.weight, s.freq), ("-1", "9")),
            (TypeError, lambda s: P.embed_tokens(s.ids.float(), s.weight, s.freq), ("input_ids",)),
            (ValueError, lambda s: P.embed_tokens(s.ids, s.weight[0], s.freq), ("weight",)),
            (ValueError, lambda s: P.embed_tokens(s.ids, s.weight, s.freq[:1]), ("6",)),
        ),
        "sinusoidal_encoding": (
            (ValueError, lambda s: P.sinusoidal_encoding(s.ids, s.freq, 9), ("9",)),
            (
                TypeError,
                lambda s: P.sinusoidal_encoding(s.ids, s.freq, 6, dtype=torch.int64),
                ("Long",),
            ),
            (TypeError, lambda s: P.sinusoidal_encoding(s.ids.bool(), s.freq, 6), ("position",)),
        ),
    }

    @pytest.mark.parametrize("operator", CASES)
    def test_text_and_a_usable_process(self, operator):
        for kind, call, words in self.CASES[operator]:
            with pytest.raises(kind) as error:
                call(self)
            for word in (operator, *words):
                assert word in str(error.value), f"{word!r} is missing in: {error.value}"
            P.add_positions(self.x, self.weight)
