"""Faults of positions on several axes: rows for columns, lost deltas, moved caches, strides."""

import posenc
import pytest
import torch
from posenc.functional import (
    mrope_axes,
    mrope_decode_position_ids,
    mrope_position_ids,
    rope_inv_freq,
    rotary_embedding,
    vision_position_ids,
)
from samples.compare import assert_same, needs_torchscript

ARRANGEMENTS = (
    "half_hw",
    "half_alternating_wh",
    "half_parity_hw",
    "pairs_wh",
    "blocks_wh",
    "half_thw",
)


def test_L9_rows_and_columns_of_a_grid_that_is_not_square():
    """Token t stands in row t // W and column t % W."""
    ids = vision_position_ids(torch.tensor([[1, 2, 3]]))
    assert ids.tolist() == [[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]
    assert ids[:, 2].tolist() == [0, 2] and ids[:, 4].tolist() == [1, 1]
    rope = posenc.AxialRotaryEmbedding(16)
    x = torch.randn(1, 1, 1, 16).expand(1, 6, 1, 16)
    out = rope(x, ids)[0, :, 0]
    rows, columns = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
    assert_same(out[3, rows], out[5, rows])
    assert not torch.equal(out[3, columns], out[5, columns])
    assert_same(out[2, columns], out[5, columns])
    assert not torch.equal(out[2, rows], out[5, rows])


def test_L9_merge_blocks_of_a_grid_that_is_not_square():
    """2 rows, 4 columns, blocks of 2 x 2: the left block, then the right one."""
    rows, columns = vision_position_ids(torch.tensor([[1, 2, 4]], dtype=torch.int32), 2).tolist()
    assert rows == [0, 0, 1, 1, 0, 0, 1, 1]
    assert columns == [0, 1, 0, 1, 2, 3, 2, 3]


def test_K7_positions_around_an_image():
    """Three words, a grid of 1 x 2 x 2, a word: the word is at 5, the delta -2."""
    types = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    ids, deltas = mrope_position_ids(types, torch.tensor([[1, 2, 2]]), spatial_merge_size=1)
    assert ids[0, 0].tolist() == [0, 1, 2, 3, 3, 3, 3]
    assert ids[1, 0].tolist() == [0, 1, 2, 3, 3, 4, 4]
    assert ids[2, 0].tolist() == [0, 1, 2, 3, 4, 3, 4]
    assert deltas.tolist() == [-2]
    with_text, same = mrope_position_ids(
        torch.cat([types, torch.tensor([[0, 0]])], 1), torch.tensor([[1, 2, 2]]),
        spatial_merge_size=1,
    )  # fmt: skip
    assert with_text[:, 0, 7:].tolist() == [[5, 6]] * 3 and same.tolist() == [-2]
    for step in range(3):
        decoded = mrope_decode_position_ids(torch.tensor([7 + step]), deltas)
        assert decoded.shape == (3, 1, 1) and set(decoded.flatten().tolist()) == {7 + step - 2}


def test_K7_a_delta_for_each_request():
    """Rows with and without images, then another batch: nothing is kept from one to the next."""
    types = torch.tensor([[0, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]])
    grids = torch.tensor([[1, 4, 4], [1, 2, 8]])
    ids, deltas = mrope_position_ids(types, grids, attention_mask=mask)
    assert deltas.tolist() == [4 - 6, 0, 5 - 5]
    assert ids[:, 1].tolist() == [[0, 0, 0, 1, 2, 3]] * 3
    counts = mask.sum(-1)
    step = mrope_decode_position_ids(counts, deltas, 2)
    assert step[0].tolist() == [[4, 5], [4, 5], [5, 6]]
    assert torch.equal(step[0], step[1]) and torch.equal(step[0], step[2])
    again, other = mrope_position_ids(types[1:2])
    assert other.tolist() == [0] and again[0].tolist() == [[0, 1, 2, 3, 4, 5]]


def test_K7_prefill_and_decode_agree_with_the_whole():
    """Decoding by the delta gives the keys that one pass over everything gives, bit for bit."""
    types = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0]])
    grids = torch.tensor([[1, 4, 6]])
    whole, _ = mrope_position_ids(types, grids)
    prompt, deltas = mrope_position_ids(types[:, :9], grids)
    rest = mrope_decode_position_ids(torch.tensor([9]), deltas, 3)
    x, axes = torch.randn(1, 12, 2, 16), mrope_axes([2, 3, 3])

    def rope(part, ids):
        return rotary_embedding(part, rope_inv_freq(16), ids, axes=axes)

    assert_same(torch.cat([rope(x[:, :9], prompt), rope(x[:, 9:], rest)], 1), rope(x, whole))


@pytest.mark.parametrize("layer", (posenc, posenc.cpp), ids=("python", "cpp"))
def test_K10_keys_at_several_positions_are_not_moved_by_one_number(layer):
    several = layer.RotaryPositionalEmbedding(8, axes=[0, 1, 2, 0])
    key = several(torch.randn(1, 3, 2, 8), torch.zeros(3, 1, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="shift: expected one position axis"):
        several.shift(key, -2)
    dynamic = layer.RotaryPositionalEmbedding(
        8, 64, scaling={"rope_type": "dynamic", "factor": 2.0}
    )
    with pytest.raises(ValueError, match=r"shift: expected inv_freq.*inv_freq_at.*dynamic"):
        dynamic.shift(key, -2)


@pytest.mark.parametrize("layer", (posenc, posenc.cpp), ids=("python", "cpp"))
@pytest.mark.parametrize(
    "options",
    (
        {},
        {"interleaved": False, "rotary_dim": 4},
        {"interleaved_out": False},
        {"inverse": True, "rotary_start": 2, "seq_dim": 2},
    ),
    ids=str,
)
def test_K11_a_shift_is_a_pure_turn(layer, options):
    """Moved by 0, and there and back: unchanged; the norm is kept though the factor is 1.277."""
    yarn = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64}
    rope = layer.RotaryPositionalEmbedding(8, scaling=yarn, **options)
    x = torch.randn(2, 5, 3, 8, dtype=torch.float64)
    if options.get("seq_dim") == 2:
        x = x.transpose(1, 2)
    near = {"rtol": 0, "atol": 1e-13}
    key = rope(x, None, 7)
    torch.testing.assert_close(rope.shift(key, 0), key, **near)
    moved = rope.shift(key, -4)
    torch.testing.assert_close(moved, rope(x, None, 3), **near)
    torch.testing.assert_close(moved.norm(dim=-1), key.norm(dim=-1), **near)
    torch.testing.assert_close(rope.shift(moved, 4), key, **near)
    each = torch.tensor([[0, 1, 2, 3, 4], [5, -5, 0, 0, 1]])
    ids = torch.arange(5) + each
    torch.testing.assert_close(rope.shift(key, each - 7), rope(x, ids), **near)


@needs_torchscript
def test_K11_a_shift_in_scripted_code():
    rope = posenc.RotaryPositionalEmbedding(8, interleaved_out=False)
    key = rope(torch.randn(2, 5, 3, 8))
    scripted = torch.jit.script(rope)
    assert_same(scripted.shift(key, -2), rope.shift(key, -2))
    each = torch.tensor([3, -1])
    assert_same(scripted.shift(key, each), rope.shift(key, each))
    assert_same(scripted.shift(key, -2, rope.inv_freq), rope.shift(key, -2))


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_L8_any_strides(arrangement, dtype):
    """A slice of a fused qkv, every second channel, an expanded input; gradients of stride 0."""
    rope = posenc.AxialRotaryEmbedding(24, arrangement, n_prefix=1)
    ids = torch.randint(-5, 40, (3 if arrangement == "half_thw" else 2, 2, 5))
    base = torch.randn(2, 6, 3, 24).to(dtype)
    qkv = torch.randn(2, 6, 3, 72).to(dtype)
    qkv[..., 24:48] = base
    wide = torch.randn(2, 6, 3, 48).to(dtype)
    wide[..., ::2] = base
    want = None
    for x in (base, qkv[..., 24:48], wide[..., ::2]):
        leaf = x.detach().requires_grad_()
        out = rope(leaf, ids)
        got = (out, *torch.autograd.grad(out.sum(), leaf))
        want = got if want is None else want
        assert_same(got, want)
    one = base[:, :, :1].expand(2, 6, 3, 24)
    assert_same(rope(one, ids), rope(one.contiguous(), ids))
