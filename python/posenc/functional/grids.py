"""RoPE with more than one position axis: which axis a frequency reads, and positions in grids."""

import torch
from torch import Tensor

from .._device import default_device
from .._tracing import is_traced_size, refuse_traced_sizes, traced_offset


def rope_axes(arrangement: str, sections: list[int], n: int | None = None) -> list[int]:
    """Which position axis each frequency of RoPE reads: the ``axes`` of `rotary_embedding`.

    Args:
        arrangement: (axis 0 is time t, 1 height h, 2 width w)

            - ``"contiguous"``: the first section's frequencies read axis 0, the next ones axis 1,
              ... for any number of axes. Qwen2-VL and Qwen2.5-VL [16, 24, 24], GLM-4.1V
              [8, 12, 12], XD-RoPE of HunYuan-VL.
            - ``"interleaved"``: sections (t, h, w); h where ``i % 3 == 1`` and ``i < 3 n_h``, w
              where ``i % 3 == 2`` and ``i < 3 n_w``, else t. Qwen3-VL [24, 20, 20], Qwen3.5
              [11, 11, 10].
            - ``"alternating"``: the axes in turn. NeoMME (rows, columns).
            - ``"alternating_hwt"``: sections (h, w, t); h and w in turn, then t. ERNIE-4.5-VL
              [22, 22, 20].
            - ``"alternating_thw"``: the same axes from sections (t, h, w). VideoRoPE [16, 24, 24].
        sections: frequencies of each axis.
        n: number of frequencies, checked against the sum where given.

    Returns:
        one axis for each frequency.

    Raises:
        ValueError: an unknown arrangement, or sections that it has no rule for or whose sum is
            not n.

    Sources: Qwen2-VL, arXiv:2409.12191; Qwen3-VL, arXiv:2511.21631; VideoRoPE, arXiv:2502.05173.

    >>> P.rope_axes("contiguous", [2, 1, 1])
    [0, 0, 1, 2]
    >>> P.rope_axes("interleaved", [2, 1, 1])
    [0, 1, 2, 0]
    """
    return torch.ops.posenc.rope_axes(arrangement, sections, n)


def mrope_axes(sections: list[int], interleaved: bool = False, n: int | None = None) -> list[int]:
    """`rope_axes` of a configuration's ``mrope_section`` and ``mrope_interleaved``.

    Args:
        sections: frequencies that read time, height and width (or any number of axes).
        interleaved: the ``"interleaved"`` arrangement in place of ``"contiguous"``.
        n: number of frequencies, checked against the sum where given.

    >>> P.mrope_axes([2, 1, 1])
    [0, 0, 1, 2]
    """
    return torch.ops.posenc.rope_axes("interleaved" if interleaved else "contiguous", sections, n)


def axial_rotary_embedding(
    x: Tensor,
    inv_freq: list[float],
    axes: list[int],
    position_ids: Tensor,
    offset: int = 0,
    seq_dim: int = 1,
    interleaved: bool = False,
    blocks: int = 1,
    n_prefix: int = 0,
    n_suffix: int = 0,
    inverse: bool = False,
) -> Tensor:
    """RoPE by positions on several axes; `posenc.AxialRotaryEmbedding` knows the arrangements.

    Args:
        x: (..., D), usually (B, L, H, D).
        inv_freq: frequencies in radians per position, of all blocks one after the other.
        axes: for each frequency the axis of ``position_ids`` that it reads.
        position_ids: (A, L), the same for each row of the batch, or (A, B, L), of the tokens
            between prefix and suffix; A is the largest axis + 1.
        offset: added to every position.
        seq_dim: the axis of ``x`` that is time.
        interleaved: pairs are channels (2i, 2i + 1); False: the two halves of a block.
        blocks: parts of the rotated channels that are laid out each by itself.
        n_prefix, n_suffix: tokens at the beginning and the end of the sequence that have no
            position (class token, registers) and pass bit for bit.
        inverse: rotate by the negative angle.

    >>> inv_freq, axes = 2 * P.rope_inv_freq(32), [0] * 16 + [1] * 16
    >>> position_ids = P.vision_position_ids(torch.tensor([1, 4, 6]))
    >>> x = torch.randn(2, 24, 8, 64)
    >>> P.axial_rotary_embedding(x, inv_freq, axes, position_ids).shape
    torch.Size([2, 24, 8, 64])
    """
    if not torch.jit.is_scripting():
        if type(offset) is not int:
            position_ids, offset = traced_offset(x, position_ids, offset, seq_dim)
    return torch.ops.posenc.axial_rotary_embedding(
        x, inv_freq, axes, position_ids, offset, seq_dim, interleaved, blocks, n_prefix, n_suffix,
        inverse,
    )  # fmt: skip


def mixed_rotary_embedding(
    x: Tensor,
    freqs: Tensor,
    position_ids: Tensor,
    offset: int = 0,
    seq_dim: int = 1,
    interleaved: bool = True,
    n_prefix: int = 0,
    n_suffix: int = 0,
    inverse: bool = False,
) -> Tensor:
    """RoPE-Mixed: the angle is ``sum(position_ids[a] * freqs[a])`` over the axes, in float64.

    Args:
        x: (B, L, H, D), or with time at ``seq_dim``; any rank with shared frequencies.
        freqs: floating, (A, H, n), or (A, n) shared by the heads; differentiable.
        position_ids: (A, L) or (A, B, L), integer or real, of the tokens between prefix and
            suffix.
        offset, seq_dim, n_prefix, n_suffix, inverse: as in `axial_rotary_embedding`.
        interleaved: pairs are channels (2i, 2i + 1); False: (i, i + n).

    Source: Heo et al. 2024, arXiv:2403.13298.

    >>> position_ids = P.vision_position_ids(torch.tensor([1, 4, 6]))
    >>> x, freqs = torch.randn(2, 24, 8, 64), torch.randn(2, 8, 32)
    >>> P.mixed_rotary_embedding(x, freqs, position_ids).shape
    torch.Size([2, 24, 8, 64])
    """
    if not torch.jit.is_scripting():
        if type(offset) is not int:
            position_ids, offset = traced_offset(x, position_ids, offset, seq_dim)
    return torch.ops.posenc.mixed_rotary_embedding(
        x, freqs, position_ids, offset, seq_dim, interleaved, n_prefix, n_suffix, inverse
    )


def vision_position_ids(
    grid_thw: Tensor, spatial_merge_size: int = 1, include_time: bool = False
) -> Tensor:
    """Rows and columns of the patches of images and videos, for the towers that see them.

    Reads the numbers, which decide the length: call it outside of compiled and exported code
    (``ValueError`` there) and hand the result in.

    Args:
        grid_thw: (images, 3), integer: frames, rows and columns of patches; one (3) is one image.
        spatial_merge_size: m: patches are ordered in blocks of m x m, as in the Qwen towers;
            1 is row by row. Divides rows and columns.
        include_time: the frame as a first axis.

    Returns:
        int64 (2, L) as (h, w), or (3, L) as (t, h, w), on the device of ``grid_thw``. The grid
        (1, 2, 3) gives rows [0, 0, 0, 1, 1, 1] and columns [0, 1, 2, 0, 1, 2].

    >>> P.vision_position_ids(torch.tensor([1, 2, 3]))
    tensor([[0, 0, 0, 1, 1, 1],
            [0, 1, 2, 0, 1, 2]])
    """
    return torch.ops.posenc.vision_position_ids(grid_thw, spatial_merge_size, include_time)


def mrope_position_ids(
    token_types: Tensor,
    image_grid_thw: Tensor | None = None,
    video_grid_thw: Tensor | None = None,
    attention_mask: Tensor | None = None,
    spatial_merge_size: int = 2,
    temporal_merge_size: int = 1,
    tokens_per_second: float = 1.0,
    second_per_grid_ts: Tensor | None = None,
    split_video_frames: bool = False,
) -> tuple[Tensor, Tensor]:
    """Positions (t, h, w) of a sequence of text, images and videos: M-RoPE.

    Text counts up, equal on all axes. An image or a video begins where the count stands; its
    tokens add their frame, row and column. The count goes on at the largest position on any axis
    + 1. (transformers 5.24 adds ``max(h, w) // m`` instead, which differs where a video has more
    frames than rows and columns, and contradicts its own decoding step.)

    Reads the numbers, as `vision_position_ids`.

    Args:
        token_types: (B, L), integer: 0 text, 1 image, 2 video (``mm_token_type_ids``).
        image_grid_thw, video_grid_thw: (n, 3), integer: the grids of the whole batch, row after
            row, in patches before merging.
        attention_mask: (B, L), nonzero for real tokens; padding, on either side, is at 0.
        spatial_merge_size: m: a grid has h / m rows and w / m columns of tokens.
        temporal_merge_size: a video has t / this many frames of tokens (ERNIE-4.5-VL: 2).
        tokens_per_second, second_per_grid_ts: frame k of video i is at
            ``floor(k * tokens_per_second * second_per_grid_ts[i])`` (Qwen2.5-VL); seconds (n)
            default to 1.
        split_video_frames: timestamps stand between the frames of a video, each of which is then
            a grid of its own (Qwen3-VL, GLM-4.1V).

    Returns:
        int64 position_ids (3, B, L), and rope_deltas (B): the row's largest position + 1 - its
        number of real tokens, for `mrope_decode_position_ids`.

    Raises:
        ValueError: tokens and grids that do not fit each other, with the row and both numbers.

    Source: Qwen2-VL, arXiv:2409.12191.

    >>> token_types = torch.tensor([[0, 1, 1, 1, 1, 0]])  # a word, an image of 2 x 2 tokens, a word
    >>> position_ids, deltas = P.mrope_position_ids(token_types, torch.tensor([[1, 4, 4]]))
    >>> position_ids[:, 0]
    tensor([[0, 1, 1, 1, 1, 3],
            [0, 1, 1, 2, 2, 3],
            [0, 1, 2, 1, 2, 3]])
    >>> deltas
    tensor([-2])
    """
    return torch.ops.posenc.mrope_position_ids(
        token_types, image_grid_thw, video_grid_thw, attention_mask, spatial_merge_size,
        temporal_merge_size, tokens_per_second, second_per_grid_ts, split_video_frames,
    )  # fmt: skip


def mrope_decode_position_ids(
    n_tokens: Tensor, rope_deltas: Tensor, length: int = 1, n_axes: int = 3
) -> Tensor:
    """Positions of the tokens after a prompt: real tokens so far + rope_delta + 0 ... length - 1.

    Args:
        n_tokens: (B) or (1), integer: real tokens of each row before these.
        rope_deltas: (B), of the row's own prompt, see `mrope_position_ids`.
        length: new tokens in each row.
        n_axes: all axes are equal.

    Returns:
        int64 (n_axes, B, length).

    >>> P.mrope_decode_position_ids(torch.tensor([6]), torch.tensor([-2]), length=2)[:, 0]
    tensor([[4, 5],
            [4, 5],
            [4, 5]])
    """
    if not torch.jit.is_scripting():
        if type(length) is not int and is_traced_size(length):
            first = torch.ops.posenc.mrope_decode_position_ids(n_tokens, rope_deltas, 1, n_axes)
            return first + torch.arange(length, device=first.device)
    return torch.ops.posenc.mrope_decode_position_ids(n_tokens, rope_deltas, length, n_axes)


def xdrope_position_ids(
    token_types: Tensor,
    image_grid_thw: Tensor | None = None,
    attention_mask: Tensor | None = None,
    n_axes: int = 4,
    spatial_merge_size: int = 2,
) -> tuple[Tensor, Tensor]:
    """Positions of XD-RoPE (HunYuan-VL): all axes count the tokens; the last three of an image's
    grid are column, row and the number of the image in the batch.

    Reads the numbers, as `vision_position_ids`.

    Args:
        token_types: (B, L), integer: 0 text, 1 image. A row of a grid ends with a separator, in
            column w / m; an image may be enclosed by two more tokens, which count as text does.
        image_grid_thw: (n, 3), integer: the grids of the whole batch, row after row.
        attention_mask: (B, L), nonzero for real tokens; padding is at 0.
        n_axes: 3 or more.
        spatial_merge_size: a grid has h / m rows and w / m columns, and the separators.

    Returns:
        int64 position_ids (n_axes, B, L) and rope_deltas (B).

    >>> token_types = torch.tensor([[0, 1, 1, 1, 0]])  # a word, an image of 1 x 2 and its separator
    >>> position_ids, deltas = P.xdrope_position_ids(token_types, torch.tensor([[1, 2, 4]]))
    >>> position_ids.shape
    torch.Size([4, 1, 5])
    """
    return torch.ops.posenc.xdrope_position_ids(
        token_types, image_grid_thw, attention_mask, n_axes, spatial_merge_size
    )


def grid_coordinates(height: int, width: int, device: torch.device | None = None) -> Tensor:
    """Centres of the patches of a grid, row by row, in coordinates from -1 to 1 (DINOv3).

    Args:
        height, width: of the grid, in patches.
        device: of the result; None for the default device.

    Returns:
        float64 (2, height * width): y and x.

    Raises:
        TypeError: a size that ``torch.jit.trace`` follows, which a trace could not keep.

    Source: DINOv3, arXiv:2508.10104.

    >>> P.grid_coordinates(1, 2)
    tensor([[ 0.0000,  0.0000],
            [-0.5000,  0.5000]], dtype=torch.float64)
    """
    if not torch.jit.is_scripting():
        if torch.jit.is_tracing():
            refuse_traced_sizes(
                "grid_coordinates",
                "use torch.jit.script or torch.export",
                height=height,
                width=width,
            )
        if device is None:
            device = default_device()
    return torch.ops.posenc.grid_coordinates(height, width, device)


def augment_coordinates(
    coordinates: Tensor,
    shift: float | None = None,
    jitter: float | None = None,
    rescale: float | None = None,
) -> Tensor:
    """Coordinates as DINOv3 moves them in training, drawn anew at each call.

    Args:
        coordinates: (A, ...), floating, see `grid_coordinates`.
        shift: adds a number of [-shift, shift] to each axis.
        jitter: multiplies each axis by a number of [1 / jitter, jitter], log-uniform.
        rescale: multiplies all axes by one number of [1 / rescale, rescale], log-uniform.
            Each is left out where it is None.

    >>> P.augment_coordinates(P.grid_coordinates(4, 4), shift=0.1, rescale=2.0).shape
    torch.Size([2, 16])
    """
    return torch.ops.posenc.augment_coordinates(coordinates, shift, jitter, rescale)


# They make lists of integers out of constants; torch.compile calls them while it traces.
rope_axes._dynamo_marked_constant = True
mrope_axes._dynamo_marked_constant = True
