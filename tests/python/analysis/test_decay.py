"""Expected scores against the formulas, in float64."""

import math

import posenc
import pytest
import reference
import torch
from posenc.analysis import expected_scores, expected_scores_on_grid

DISTANCES = [0, 1, 3, 10, 100, 1000]


def cosines(inv_freq, distances, width, factor=1.0, still=0):
    """(2 A^2 sum cos + channels that are not rotated) / sqrt(D)."""
    return torch.tensor(
        [
            (2 * factor**2 * sum(math.cos(d * f) for f in inv_freq) + still) / math.sqrt(width)
            for d in distances
        ],
        dtype=torch.float64,
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"interleaved": False},
        {"base": 5e5, "seq_dim": 2},
        {"inverse": True},
        {"interleaved_out": False},
    ],
    ids=str,
)
def test_rope(options):
    scores, plain = expected_scores(posenc.RotaryPositionalEmbedding(32, **options), DISTANCES)
    want = cosines(reference.rope_inv_freq(32, options.get("base", 1e4)), DISTANCES, 32)
    assert plain == math.sqrt(32) and scores.dtype == torch.float64
    torch.testing.assert_close(scores, want[None], rtol=0, atol=1e-12)


def test_partial_rope_keeps_the_score_of_what_it_does_not_rotate():
    rope = posenc.RotaryPositionalEmbedding(32, rotary_dim=8, rotary_start=4)
    scores, _ = expected_scores(rope, DISTANCES)
    want = cosines(reference.rope_inv_freq(8), DISTANCES, 32, still=24)
    torch.testing.assert_close(scores[0], want, rtol=0, atol=1e-12)


def test_scalings_with_factor_and_length():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    rope = posenc.RotaryPositionalEmbedding(16, scaling=yarn)
    want = cosines(rope.inv_freq, DISTANCES, 16, rope.attention_factor)
    torch.testing.assert_close(expected_scores(rope, DISTANCES)[0][0], want, rtol=0, atol=1e-12)
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}
    rope = posenc.RotaryPositionalEmbedding(16, scaling=dynamic)
    want = cosines(rope.inv_freq_at(1001), DISTANCES, 16)
    torch.testing.assert_close(expected_scores(rope, DISTANCES)[0][0], want, rtol=0, atol=1e-11)


def test_axes_that_agree_are_one():
    options = {"axes": [0, 1, 2, 0, 1, 2, 0, 0]}
    got = expected_scores(posenc.RotaryPositionalEmbedding(16, **options), DISTANCES)[0]
    want = expected_scores(posenc.RotaryPositionalEmbedding(16), DISTANCES)[0]
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_xpos_fades():
    scores, _ = expected_scores(posenc.XPosRotaryEmbedding(16), DISTANCES)
    inv_freq = reference.rope_inv_freq(16)
    for d, got in zip(DISTANCES, scores[0].tolist(), strict=True):
        zeta = [(2 * i + 0.4 * 16) / (1.4 * 16) for i in range(8)]
        faded = [z ** (d / 512) * math.cos(d * f) for z, f in zip(zeta, inv_freq, strict=True)]
        want = 2 * sum(faded)
        assert got == pytest.approx(want / 4, abs=1e-9)


def test_learned_frequencies_have_one_curve_a_head():
    rope = posenc.LearnedRotaryEmbedding(8, n_heads=3)
    with torch.no_grad():
        rope.alpha[1] = 0.5
    scores, _ = expected_scores(rope, DISTANCES)
    for head in range(3):
        inv_freq = rope.frequencies()[0, head].tolist()
        want = cosines(inv_freq, DISTANCES, 8)
        torch.testing.assert_close(scores[head], want, rtol=0, atol=1e-12)
    assert not torch.equal(scores[0], scores[1])


def test_alibi_falls_by_its_slopes():
    layer = posenc.ALiBiAttention(96, 12)
    scores, plain = expected_scores(layer, DISTANCES)
    slopes = torch.tensor(reference.alibi_slopes(12), dtype=torch.float64)
    want = math.sqrt(8) - slopes[:, None] * torch.tensor(DISTANCES)
    torch.testing.assert_close(scores, want, rtol=0, atol=1e-11)
    assert plain == pytest.approx(math.sqrt(8))


def test_alibi_between_whole_distances():
    layer = posenc.ALiBiAttention(64, 4)
    distances = [0.0, 1.5, 1.75, 7.25]
    scores, plain = expected_scores(layer, distances)
    slopes = torch.tensor(reference.alibi_slopes(4), dtype=torch.float64)
    want = -slopes[:, None] * torch.tensor(distances, dtype=torch.float64)
    torch.testing.assert_close(scores - plain, want, rtol=0, atol=1e-12)


def test_attention_layers_stand_for_their_rope():
    attention = posenc.RoPEAttention(64, 4, base=500.0)
    got, want = expected_scores(attention, [5]), expected_scores(attention.rope, [5])
    assert torch.equal(got[0], want[0]) and got[1] == want[1] == 4.0


def test_tables_that_are_added():
    sinusoidal, plain = expected_scores(posenc.SinusoidalPositionalEncoding(32), DISTANCES)
    halves = cosines(reference.sinusoidal_inv_freq(32), DISTANCES, 32) / 2
    torch.testing.assert_close(sinusoidal[0], plain + halves, rtol=0, atol=1e-9)
    table = posenc.get_positional_encoding(1001, 32, dtype=torch.float64)
    torch.testing.assert_close(expected_scores(table, DISTANCES)[0], sinusoidal, rtol=0, atol=1e-9)
    layer = posenc.LearnedPositionalEncoding(4, 8, position_offset=2)
    rows = layer.positional_embeddings.weight[2:].double()
    products = [(rows[: 4 - d] * rows[d:]).sum(-1).mean() for d in range(4)]
    want = (8 + torch.stack(products)) / math.sqrt(8)
    torch.testing.assert_close(expected_scores(layer, range(4))[0][0], want.detach())


def test_grids():
    layer = posenc.AxialRotaryEmbedding(16, n_prefix=1, n_suffix=2)
    scores, plain = expected_scores_on_grid(layer, 3)
    assert scores.shape == (1, 7, 7) and plain == 4.0
    series = [10000.0 ** (-2 * j / 8) for j in range(4)]
    for y in range(-3, 4):
        for x in range(-3, 4):
            want = 2 * sum(math.cos(y * f) + math.cos(x * f) for f in series) / 4
            assert scores[0, y + 3, x + 3].item() == pytest.approx(want, abs=1e-12)
    mixed = posenc.MixedRotaryEmbedding(16, 2, seq_dim=2)
    scores, _ = expected_scores_on_grid(mixed, 2)
    freqs = mixed.freqs.detach().double()
    turn = 2 * freqs[0, 1] - 1 * freqs[1, 1]  # two rows down, one column to the left
    want = 2 * turn.cos().sum() / 4
    torch.testing.assert_close(scores[1, 4, 1], want, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: expected_scores(torch.nn.Linear(2, 2), [1]), TypeError, ["posenc layer"]),
        (lambda: expected_scores(torch.nn.Identity(), [1]), ValueError, ["Identity"]),
        (lambda: expected_scores(posenc.RotaryPositionalEmbedding(8), [-1]), ValueError, ["-1"]),
        (lambda: expected_scores(posenc.RotaryPositionalEmbedding(8), []), ValueError, ["[0]"]),
        (
            lambda: expected_scores(posenc.ALiBiAttention(8, 2), [1.0, math.inf]),
            ValueError,
            ["finite distances"],
        ),
        (
            lambda: expected_scores(posenc.RotaryPositionalEmbedding(8), [math.nan]),
            ValueError,
            ["finite distances"],
        ),
        (lambda: expected_scores(torch.ones(4, 2), [4]), ValueError, ["4 positions"]),
        (lambda: expected_scores(torch.ones(4, 2), [0.5]), ValueError, ["whole"]),
        (
            lambda: expected_scores(posenc.AxialRotaryEmbedding(8), [1]),
            ValueError,
            ["expected_scores_on_grid"],
        ),
        (
            lambda: expected_scores_on_grid(posenc.AxialRotaryEmbedding(12, "half_thw")),
            ValueError,
            ["two position axes", "3"],
        ),
        (
            lambda: expected_scores_on_grid(posenc.RotaryPositionalEmbedding(8)),
            ValueError,
            ["two position axes"],
        ),
        (
            lambda: expected_scores_on_grid(posenc.AxialRotaryEmbedding(8), 0),
            ValueError,
            ["reach", "0"],
        ),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value
