"""RoPE over rows and columns: arrangements, tokens without a position, learned frequencies."""

import math

import posenc
import pytest
import torch
from posenc.functional import (
    axial_rotary_embedding,
    grid_coordinates,
    mixed_rotary_embedding,
    rope_inv_freq,
    rotary_embedding,
    vision_position_ids,
)
from reference import grids as reference
from samples.compare import FLOATS, array, assert_near, assert_same, needs_torchscript

TWO_AXES = (
    "half_hw",
    "half_wh",
    "half_alternating_wh",
    "half_parity_hw",
    "pairs_wh",
    "pairs_hw",
    "blocks_wh",
)
ARRANGEMENTS = (*TWO_AXES, "half_thw")
every = pytest.mark.parametrize("arrangement", ARRANGEMENTS)


def ids_for(arrangement, *shape):
    return torch.randint(-5, 40, (3 if arrangement == "half_thw" else 2, *shape))


@every
@pytest.mark.parametrize("head_dim", (16, 20, 64))
def test_every_channel_turns_as_described(arrangement, head_dim):
    """Against turns written channel by channel; what no turn names passes bit for bit."""
    rope = posenc.AxialRotaryEmbedding(head_dim, arrangement, 100.0, scale=0.7, offset=3)
    x = torch.randn(2, 7, 3, head_dim, dtype=torch.float64)
    ids = ids_for(arrangement, 2, 7)
    turns = reference.axial_turns(arrangement, head_dim, 100.0)
    want = array(x).copy()
    for index, _, positions in reference.middle_rows(want, ids.numpy(), 1, 0, 0):
        for low, high, axis, frequency in turns:
            reference.turn(want[index], low, high, (positions[axis] + 3) * 0.7 * frequency)
    out = rope(x, ids)
    assert_near(out, want, steps=100, magnitude=4)
    rest = sorted(set(range(head_dim)) - {c for low, high, *_ in turns for c in (low, high)})
    assert len(rest) == head_dim - 2 * len(rope.inv_freq)
    assert_same(out[..., rest], x[..., rest])


@every
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize(("n_prefix", "n_suffix"), ((1, 0), (0, 2), (3, 1)))
def test_tokens_without_a_position_pass_bit_for_bit(arrangement, dtype, n_prefix, n_suffix):
    x = torch.randn(2, 9, 3, 16).to(dtype)
    x[0, 0, 0, 0], x[1, -1, 0, 1] = -0.0, math.inf  # a turn by 0 would change these
    length = 9 - n_prefix - n_suffix
    ids = ids_for(arrangement, length)
    whole = posenc.AxialRotaryEmbedding(16, arrangement, n_prefix=n_prefix, n_suffix=n_suffix)
    bare = posenc.AxialRotaryEmbedding(16, arrangement)
    out = whole(x, ids)
    middle = slice(n_prefix, n_prefix + length)
    for ends in (slice(0, n_prefix), slice(n_prefix + length, None)):
        assert torch.equal(out[:, ends].view(torch.uint8), x[:, ends].view(torch.uint8))
    keep = torch.isfinite(x).all(-1)[:, middle]
    assert_same(out[:, middle][keep], bare(x[:, middle], ids)[keep])


@pytest.mark.parametrize("arrangement", ("half_parity_hw",))
@pytest.mark.parametrize("interleaved", (False,))
def test_equal_axes_are_1d_rope_where_the_frequencies_are(arrangement, interleaved):
    """Pixtral's are the frequencies of 1-D RoPE in another order of the channels."""
    D = 32
    order = [*range(0, D // 2, 2), *range(1, D // 2, 2)]
    order += [i + D // 2 for i in order]
    x, ids = torch.randn(2, 9, 3, D), torch.randint(-9, 10**6, (2, 9))
    rope = posenc.AxialRotaryEmbedding(D, arrangement)
    plain = rotary_embedding(x, rope_inv_freq(D), ids, interleaved=interleaved)
    several = rope(x[..., order], ids.expand(2, 2, 9))
    assert_same(several, plain[..., order].contiguous())


@every
def test_equal_axes_are_1d_rope_with_these_frequencies(arrangement):
    x = torch.randn(2, 9, 3, 24)
    rope = posenc.AxialRotaryEmbedding(24, arrangement)
    ids = torch.randint(-9, 10**6, (2, 9))
    if rope.blocks > 1:
        pytest.skip("each block is a RoPE of its own")
    plain = rotary_embedding(x, rope.inv_freq, ids, interleaved=rope.interleaved)
    assert_same(rope(x, ids.expand(rope.n_axes, 2, 9)), plain)


@every
def test_inverse_undoes(arrangement):
    rope = posenc.AxialRotaryEmbedding(24, arrangement)
    x, ids = torch.randn(2, 5, 3, 24, dtype=torch.float64), ids_for(arrangement, 5)
    options = {"interleaved": rope.interleaved, "blocks": rope.blocks}
    out = axial_rotary_embedding(x, rope.inv_freq, rope.axes, ids, **options)
    back = axial_rotary_embedding(out, rope.inv_freq, rope.axes, ids, **options, inverse=True)
    torch.testing.assert_close(back, x, rtol=0, atol=1e-14)


@pytest.mark.parametrize("seq_dim", (1, 2))
def test_positions_for_the_batch_or_for_each_row(seq_dim):
    """(A, L) is shared by the batch; it is never mistaken for one position a row."""
    shape = (2, 2, 3, 16) if seq_dim == 1 else (2, 3, 2, 16)
    x, ids = torch.randn(shape), torch.tensor([[0, 5], [7, 1]])
    for rope in (
        posenc.AxialRotaryEmbedding(16, seq_dim=seq_dim),
        posenc.MixedRotaryEmbedding(16, 3, seq_dim=seq_dim),
    ):
        assert_same(rope(x, ids), rope(x, ids[:, None].expand(2, 2, 2)))
        assert_same(rope(x, ids), torch.cat([rope(x[b : b + 1], ids) for b in range(2)]))


def test_coordinates_of_dinov3():
    rope = posenc.AxialRotaryEmbedding(16, base=100.0, scale=2 * math.pi, n_prefix=1)
    x = torch.randn(1, 7, 2, 16, dtype=torch.float64)
    coordinates = grid_coordinates(2, 3)
    assert_near(coordinates, reference.grid_coordinates(2, 3), steps=2)
    out = rope(x, coordinates)
    angle = 2 * math.pi * coordinates[1, 2] * 100 ** (-4 / 16)  # x of token 2, frequency 1
    low, high = x[0, 3, 0, 5], x[0, 3, 0, 13]
    torch.testing.assert_close(out[0, 3, 0, 5], low * angle.cos() - high * angle.sin())


def test_what_makes_no_sense():
    for options, words in (
        ({"arrangement": "spiral"}, ("spiral", "half_hw")),
        ({"head_dim": 18}, ("18", "multiple of 4")),
        ({"head_dim": 4, "arrangement": "half_thw"}, ("4", "half_thw")),
        ({"base": 0.0}, ("base",)),
        ({"scale": 0.0}, ("scale",)),
        ({"n_prefix": -1}, ("n_prefix", "-1")),
    ):
        with pytest.raises(ValueError, match="expected") as error:
            posenc.AxialRotaryEmbedding(**{"head_dim": 16, **options})
        for word in words:
            assert word in str(error.value)
    rope = posenc.AxialRotaryEmbedding(16, n_prefix=1)
    x, good = torch.randn(2, 7, 3, 16), torch.zeros(2, 6, dtype=torch.long)
    rope(x, good)
    for ids in (
        torch.zeros(3, 6, dtype=torch.long),  # t, h, w: the time would be read as a row
        torch.zeros(2, 7, dtype=torch.long),  # with the prefix
        torch.zeros(2, 3, 6, dtype=torch.long),  # another batch
        torch.zeros(6, dtype=torch.long),
        torch.zeros(6, 2, dtype=torch.long),
    ):
        with pytest.raises(ValueError, match="expected position_ids of shape"):
            rope(x, ids)
    with pytest.raises(TypeError, match="BFloat16"):
        rope(x, good.bfloat16())
    with pytest.raises(ValueError, match="head_dim = 16"):
        rope(x[..., :12], good)
    with pytest.raises(ValueError, match="position_ids"):
        rope(x[:, :0], good)
    with pytest.raises(ValueError, match="axes"):
        axial_rotary_embedding(x, [1.0, 0.5], [0], good)
    with pytest.raises(ValueError, match="blocks"):
        axial_rotary_embedding(x, [1.0, 0.5], [0, 1], torch.zeros(2, 7), blocks=3)


# --- RoPE-Mixed


def test_mixed_starts_as_published():
    """Per head a direction: freqs = mag (cos a, -sin a) and mag (sin a, cos a), theta 10."""
    torch.manual_seed(3)
    rope = posenc.MixedRotaryEmbedding(32, 5, dtype=torch.float64)
    assert rope.freqs.shape == (2, 5, 16)
    magnitude = torch.tensor([10 ** (-4 * j / 32) for j in range(8)], dtype=torch.float64)
    y, x = rope.freqs.detach().unflatten(-1, (2, 8)).unbind(0)
    for length in ((y**2 + x**2).sqrt()).unbind(0):
        torch.testing.assert_close(length, magnitude.expand(2, 8))
    torch.testing.assert_close(y[:, 1], -x[:, 0])
    torch.testing.assert_close(x[:, 1], y[:, 0])
    angle = torch.atan2(x[:, 0, 0], y[:, 0, 0])
    assert len(set(angle.tolist())) == 5
    shared = posenc.MixedRotaryEmbedding(32, 5, per_head=False)
    assert shared.freqs.shape == (2, 16)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("per_head", (True, False))
def test_mixed_is_one_turn_by_the_sum_of_angles(dtype, per_head):
    """Rounded once, as one rotation is, whatever the dtype."""
    rope = posenc.MixedRotaryEmbedding(16, 3, per_head=per_head, n_prefix=1).to(dtype)
    x = torch.randn(2, 8, 3, 16).to(dtype)
    ids = torch.randint(0, 30, (2, 7))
    out = rope(x, ids)
    assert out.dtype == dtype
    want = reference.mixed_rotary_embedding(array(x), array(rope.freqs), ids.numpy(), n_prefix=1)
    assert_near(out, want, steps=100 if dtype == torch.float64 else 10, magnitude=4)
    assert_same(out[:, :1], x[:, :1])


def test_mixed_learns_a_direction():
    """Frequencies that turned q reach those of the target: the gradient is that of the angle."""
    torch.manual_seed(0)
    target = posenc.MixedRotaryEmbedding(8, 2, dtype=torch.float64)
    rope = posenc.MixedRotaryEmbedding(8, 2, dtype=torch.float64)
    with torch.no_grad():
        rope.freqs.copy_(target.freqs + 0.05 * torch.randn(2, 2, 4, dtype=torch.float64))
    x = torch.randn(4, 12, 2, 8, dtype=torch.float64)
    ids = vision_position_ids(torch.tensor([1, 3, 4]))
    optimizer = torch.optim.Adam(rope.parameters(), lr=1e-2)
    want = target(x, ids).detach()
    for _ in range(200):
        loss = (rope(x, ids) - want).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(rope.freqs, target.freqs, rtol=0, atol=1e-3)


def test_mixed_refuses():
    rope = posenc.MixedRotaryEmbedding(16, 3)
    x, ids = torch.randn(2, 5, 3, 16), torch.zeros(2, 5, dtype=torch.long)
    with pytest.raises(ValueError, match="H heads"):
        rope(x[:, :, :2], ids)
    with pytest.raises(ValueError, match="H heads"):
        rope(x[:, :, 0], ids)
    with pytest.raises(ValueError, match="position_ids"):
        rope(x, ids.expand(3, 2, 5))
    with pytest.raises(ValueError, match=r"\(A, n\)"):
        mixed_rotary_embedding(x, rope.freqs[0, 0], ids)
    with pytest.raises(TypeError, match="freqs"):
        mixed_rotary_embedding(x, torch.ones(2, 8, dtype=torch.long), ids)
    for arguments, options in (((18, 3), {}), ((16, 0), {}), ((16, 3), {"base": -1.0})):
        for package in (posenc, posenc.cpp):
            with pytest.raises(ValueError):
                package.MixedRotaryEmbedding(*arguments, **options)


def prefixed(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.ops.posenc.axial_rotary_embedding(
        x, [1.0, 0.1, 0.5, 0.2], [1, 1, 0, 0], ids, blocks=2, n_prefix=1, n_suffix=1
    )


@needs_torchscript
def test_prefix_and_suffix_in_scripted_code():
    x, ids = torch.randn(2, 7, 3, 8), torch.randint(0, 9, (2, 5))
    assert_same(torch.jit.script(prefixed)(x, ids), prefixed(x, ids))


def test_prefix_and_suffix_in_compiled_and_exported_code():
    compiled = torch.compile(prefixed, backend="aot_eager", fullgraph=True, dynamic=True)
    for length in (5, 8):
        x, ids = torch.randn(2, length + 2, 3, 8), torch.randint(0, 9, (2, length))
        assert_same(compiled(x, ids), prefixed(x, ids))
    rope = posenc.AxialRotaryEmbedding(8, "blocks_wh", n_prefix=1)
    length = torch.export.Dim("length", min=2, max=50)
    program = torch.export.export(
        rope,
        (torch.randn(2, 7, 3, 8), torch.randint(0, 9, (2, 6))),
        dynamic_shapes=({1: length + 1}, {1: length}),
    )
    x, ids = torch.randn(2, 10, 3, 8), torch.randint(0, 9, (2, 9))
    assert_same(program.module()(x, ids), rope(x, ids))


@pytest.mark.parametrize(
    ("name", "arguments", "options"),
    (
        ("AxialRotaryEmbedding", (16, "blocks_wh", 100.0), {"scale": 0.5, "offset": 2}),
        ("AxialRotaryEmbedding", (16, "pairs_wh"), {"n_prefix": 1, "n_suffix": 2, "seq_dim": 2}),
        ("MixedRotaryEmbedding", (16, 3), {"n_suffix": 2, "interleaved": False}),
        ("MixedRotaryEmbedding", (16, 3), {"per_head": False, "seq_dim": 2, "n_prefix": 1}),
    ),
)
def test_the_cpp_modules_are_the_same(name, arguments, options):
    layer = getattr(posenc, name)(*arguments, **options)
    cpp = getattr(posenc.cpp, name)(*arguments, **options)
    cpp.load_state_dict(layer.state_dict())
    x = torch.randn(2, 8, 3, 16)
    if options.get("seq_dim") == 2:
        x = x.transpose(1, 2)
    length = 8 - options.get("n_prefix", 0) - options.get("n_suffix", 0)
    ids = torch.randint(0, 20, (2, 2, length))
    assert_same(cpp(x, ids), layer(x, ids))
    assert_same(cpp.rotate(x, -x, ids), layer.rotate(x, -x, ids))
    with pytest.raises(ValueError, match="head_dim"):
        cpp(x[..., :8], ids)


def test_from_config_names_what_it_does_not_serve():
    with pytest.raises(ValueError, match="clip_vision_model") as error:
        posenc.AxialRotaryEmbedding.from_config({"model_type": "clip_vision_model"})
    assert "qwen2_vl_vision" in str(error.value)
    with pytest.raises(ValueError, match="hidden_size"):
        posenc.AxialRotaryEmbedding.from_config({"model_type": "qwen3_vl_vision", "num_heads": 4})
    with pytest.raises(ValueError, match="layer_idx"):
        posenc.AxialRotaryEmbedding.from_config(
            {"model_type": "sam3_vit_model", "hidden_size": 64, "num_attention_heads": 4}
        )
    whole = {"model_type": "qwen3_vl", "hidden_size": 999, "num_attention_heads": 9}
    inside = {"model_type": "qwen3_vl", "hidden_size": 64, "num_heads": 4}
    rope = posenc.AxialRotaryEmbedding.from_config({**whole, "vision_config": inside})
    assert (rope.head_dim, rope.arrangement) == (16, "half_hw")
    rope = posenc.AxialRotaryEmbedding.from_config(
        {"model_type": "qwen3_vl_vision", "hidden_size": 64, "num_heads": 4}, n_prefix=1
    )
    assert (rope.head_dim, rope.arrangement, rope.n_prefix) == (16, "half_hw", 1)
