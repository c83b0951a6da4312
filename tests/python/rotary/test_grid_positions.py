"""Positions of tokens that stand in grids, and of the text around them."""

import posenc
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from posenc.functional import (
    augment_coordinates,
    grid_coordinates,
    mrope_decode_position_ids,
    mrope_position_ids,
    vision_position_ids,
    xdrope_position_ids,
)
from reference import grids as reference
from samples.compare import assert_same, needs_torchscript


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)), max_size=3),
    st.integers(1, 3),
    st.booleans(),
)
def test_patches_in_merge_blocks(grids, merge, include_time):
    grids = [(t, h * merge, w * merge) for t, h, w in grids]
    got = vision_position_ids(torch.tensor(grids).reshape(-1, 3).long(), merge, include_time)
    want = reference.vision_position_ids(grids, merge, include_time)
    assert got.dtype == torch.int64 and got.tolist() == want.tolist()


def random_batch(draw):
    """Token types, grids and a mask of a batch whose rows hold images and videos."""
    merge = draw(st.integers(1, 2))
    temporal = draw(st.integers(1, 2))
    split = draw(st.booleans())
    rows, images, videos = [], [], []
    for _ in range(draw(st.integers(1, 3))):
        row = []
        for _ in range(draw(st.integers(0, 4))):
            kind = draw(st.integers(0, 2))
            if kind == 0:
                row += [0] * draw(st.integers(1, 4))
                continue
            t = 1 if kind == 1 else draw(st.integers(1, 4))
            h, w = draw(st.integers(1, 3)), draw(st.integers(1, 3))
            if kind == 1:
                images.append((1, h * merge, w * merge))
                row += [1] * (h * w)
            else:
                videos.append((t * temporal, h * merge, w * merge))
                for _ in range(t):
                    row += [2] * (h * w) + [0] * (draw(st.integers(0, 2)) if split else 0)
        rows.append(row)
    length = max(len(row) for row in rows) + draw(st.integers(0, 2))
    left = draw(st.booleans())
    mask = [[i >= length - len(r) if left else i < len(r) for i in range(length)] for r in rows]
    padded = [
        [0] * (length - len(row)) + row if left else row + [0] * (length - len(row)) for row in rows
    ]
    seconds = [draw(st.sampled_from((0.5, 1.0, 0.04, 2 / 3))) for _ in videos]
    return {
        "token_types": torch.tensor(padded).reshape(len(rows), length).long(),
        "image_grid_thw": torch.tensor(images).reshape(-1, 3).long(),
        "video_grid_thw": torch.tensor(videos).reshape(-1, 3).long(),
        "attention_mask": torch.tensor(mask).reshape(len(rows), length),
        "spatial_merge_size": merge,
        "temporal_merge_size": temporal,
        "tokens_per_second": draw(st.sampled_from((1.0, 2.0, 25.0))),
        "second_per_grid_ts": torch.tensor(seconds, dtype=torch.float32),
        "split_video_frames": split,
    }


@given(st.composite(random_batch)())
def test_text_images_and_videos(batch):
    ids, deltas = mrope_position_ids(**batch)
    arrays = {n: v.numpy() if isinstance(v, torch.Tensor) else v for n, v in batch.items()}
    want, want_deltas = reference.mrope_position_ids(**arrays)
    assert ids.tolist() == want.tolist()
    assert deltas.tolist() == want_deltas.tolist()


def test_images_that_touch_and_frames_without_timestamps():
    """A run of image tokens may hold several grids; a video's frames may follow each other."""
    types = torch.tensor([[1, 1, 1, 0]])
    ids, _ = mrope_position_ids(types, torch.tensor([[1, 1, 2], [1, 1, 1]]), spatial_merge_size=1)
    assert ids[2, 0].tolist() == [0, 1, 2, 3] and ids[0, 0].tolist() == [0, 0, 2, 3]
    ids, _ = mrope_position_ids(
        torch.tensor([[2, 2, 2, 0]]), None, torch.tensor([[3, 1, 1]]), spatial_merge_size=1,
        split_video_frames=True,
    )  # fmt: skip
    assert ids[:, 0].tolist() == [[0, 1, 2, 3]] * 3


def test_tokens_and_grids_that_do_not_fit():
    grid = torch.tensor([[1, 4, 4]])
    types = torch.tensor([[0, 1, 1, 1, 1, 0]])

    def refused(words, *arguments, error=ValueError, function=mrope_position_ids, **options):
        with pytest.raises(error, match=f"{function.__name__}: expected") as info:
            function(*arguments, **options)
        for word in words:
            assert word in str(info.value)

    mrope_position_ids(types, grid)
    refused(("image_grid_thw", "row 0"), types)
    refused(("4 tokens", "2", "row 0"), torch.tensor([[1, 1, 0]]), grid)
    refused(("all 2 grids",), types, torch.cat([grid, grid]))
    refused(("video_grid_thw",), torch.tensor([[2, 2, 2, 2]]), grid)
    refused(("spatial_merge_size 3", "(1, 4, 4)"), types, grid, spatial_merge_size=3)
    refused(("3",), torch.tensor([[0, 3]]))
    refused(("attention_mask",), types, grid, attention_mask=torch.ones(1, 5))
    refused(("(B, L)",), types[0], grid)
    refused(("(n, 3)",), types, grid[:, :2])
    refused(("integer",), types.float(), grid, error=TypeError)
    refused(("integer",), types, grid.float(), error=TypeError)
    refused(("spatial_merge_size",), types, grid, spatial_merge_size=0)
    refused(("(1, -4, 4)",), types, torch.tensor([[1, -4, 4]]))
    videos = {"token_types": torch.tensor([[2] * 4]), "video_grid_thw": grid}
    refused(("second_per_grid_ts", "(1)"), **videos, second_per_grid_ts=torch.ones(2))
    for bad in (-1.0, float("nan"), float("inf")):
        refused(("second_per_grid_ts",), **videos, second_per_grid_ts=torch.tensor([bad]))
    refused(("tokens_per_second",), **videos, tokens_per_second=-1.0)
    refused(("divisible by 2",), **videos, temporal_merge_size=2)
    vision = {"function": vision_position_ids}
    refused(("spatial_merge_size 3",), grid, 3, **vision)
    refused(("(0, 4, 4)",), torch.tensor([[0, 4, 4]]), **vision)
    refused(("integer",), grid.float(), error=TypeError, **vision)
    decode = {"function": mrope_decode_position_ids}
    refused(("n_tokens",), torch.ones(2, 1).long(), torch.ones(2).long(), **decode)
    refused(("rope_deltas",), torch.ones(2).long(), torch.ones(2), error=TypeError, **decode)


def test_positions_follow_the_device():
    """The numbers are read, so a tensor without numbers is a clear error; compiled code too."""
    for function, arguments in (
        (vision_position_ids, (torch.ones(1, 3).long(),)),
        (mrope_position_ids, (torch.zeros(1, 4).long(),)),
        (xdrope_position_ids, (torch.zeros(1, 4).long(),)),
    ):
        with pytest.raises(ValueError, match="outside of"):
            function(*(t.to("meta") for t in arguments))
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        with pytest.raises(Exception, match=r"outside of torch\.compile"):
            compiled(*arguments)


def test_decode_positions_are_traced():
    compiled = torch.compile(
        lambda n, d, x: mrope_decode_position_ids(n, d, x.size(1)),
        backend="aot_eager",
        fullgraph=True,
        dynamic=True,
    )
    for length in (3, 5):
        n, d = torch.tensor([4, 9]), torch.tensor([-2, 0])
        x = torch.zeros(2, length)
        assert torch.equal(compiled(n, d, x), mrope_decode_position_ids(n, d, length))


@needs_torchscript
def test_scripted():
    for function, arguments in (
        (vision_position_ids, (torch.tensor([[2, 4, 4]]), 2, True)),
        (mrope_position_ids, (torch.tensor([[0, 1]]), torch.tensor([[1, 2, 2]]))),
        (mrope_decode_position_ids, (torch.tensor([4]), torch.tensor([-2]), 3)),
        (xdrope_position_ids, (torch.tensor([[0, 1, 1]]), torch.tensor([[1, 2, 2]]))),
        (grid_coordinates, (2, 3)),
    ):
        got, want = torch.jit.script(function)(*arguments), function(*arguments)
        torch.testing.assert_close(got, want, rtol=0, atol=0)


# --- XD-RoPE


def test_xdrope_columns_rows_and_images():
    """Two words, an image of 1 x 2 tokens with its separator between two marks, a word."""
    types = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 0]])
    ids, deltas = xdrope_position_ids(types, torch.tensor([[1, 2, 4]]))
    assert ids.shape == (4, 1, 8)
    assert ids[0, 0].tolist() == list(range(8))
    assert ids[1, 0].tolist() == [0, 1, 2, 0, 1, 2, 6, 7]
    assert ids[2, 0].tolist() == [0, 1, 2, 0, 0, 0, 6, 7]
    assert ids[3, 0].tolist() == [0, 1, 2, 0, 0, 0, 6, 7]
    assert deltas.tolist() == [0]
    bare, _ = xdrope_position_ids(types[:, [0, 1, 3, 4, 5, 7]], torch.tensor([[1, 2, 4]]), n_axes=3)
    assert bare[0, 0].tolist() == [0, 1, 0, 1, 2, 5]
    for bad, options in (
        (torch.tensor([[1, 1]]), {}),
        (torch.tensor([[0, 2]]), {}),
        (types, {"n_axes": 2}),
    ):
        with pytest.raises(ValueError, match="xdrope_position_ids: expected"):
            xdrope_position_ids(bad, torch.tensor([[1, 2, 4]]), **options)


# --- coordinates


@pytest.mark.parametrize(("height", "width"), ((1, 1), (2, 3), (5, 2)))
def test_centres_of_patches(height, width):
    got = grid_coordinates(height, width)
    assert got.dtype == torch.float64
    want = torch.from_numpy(reference.grid_coordinates(height, width))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-15)
    with pytest.raises(ValueError, match="grid_coordinates"):
        grid_coordinates(height, 0)


def test_coordinates_move_in_training():
    """Every draw lies where it may, each axis for itself but for the rescaling; a seed decides."""
    coordinates = torch.full((2, 5), 1.0, dtype=torch.float64)
    assert_same(augment_coordinates(coordinates), coordinates)
    draws = []
    for _ in range(200):
        shift, jitter, rescale = (
            augment_coordinates(coordinates, **{name: most})
            for name, most in (("shift", 0.5), ("jitter", 2.0), ("rescale", 4.0))
        )
        for moved in (shift, jitter, rescale):
            assert torch.equal(moved, moved[:, :1].expand(2, 5))
        draws.append([*shift[:, 0], *jitter[:, 0], *rescale[:, 0]])
    s0, s1, j0, j1, r0, r1 = torch.tensor(draws, dtype=torch.float64).T
    for s in (s0, s1):
        assert 0.5 <= s.min() < 0.6 and 1.4 < s.max() <= 1.5
    for j in (j0, j1):
        assert 0.5 <= j.min() < 0.55 and 1.8 < j.max() <= 2
        assert 0.35 < (j < 1).double().mean() < 0.65
    assert torch.equal(r0, r1) and 0.25 <= r0.min() < 0.3 and 3.6 < r0.max() <= 4
    assert not torch.equal(s0, s1) and not torch.equal(j0, j1)
    torch.manual_seed(5)
    first = augment_coordinates(coordinates, 0.1, 1.5, 2.0)
    torch.manual_seed(5)
    assert_same(augment_coordinates(coordinates, 0.1, 1.5, 2.0), first)
    for options in ({"shift": -1.0}, {"jitter": 0.5}, {"rescale": 0.0}, {"jitter": float("nan")}):
        with pytest.raises(ValueError, match="augment_coordinates"):
            augment_coordinates(coordinates, **options)
    with pytest.raises(TypeError, match="augment_coordinates"):
        augment_coordinates(coordinates.long())


def test_coordinates_turn_dinov3_heads():
    rope = posenc.AxialRotaryEmbedding(8, base=100.0, scale=6.25)
    x = torch.randn(1, 6, 1, 8, requires_grad=True)
    rope(x, augment_coordinates(grid_coordinates(2, 3), 0.1)).sum().backward()
    assert torch.isfinite(x.grad).all()
